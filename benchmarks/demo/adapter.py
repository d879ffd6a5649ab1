"""A PiSSA adapter as PEFT saves it: pushed, looked at, converted, and loaded by a stock client."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hub import EmbeddedHub, HubFailed, run_json

_CLIENT = Path(__file__).parent / "adapter_client.py"
# Of the adapter's effect on the logits: what loading it may differ.
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Adapter:
    """Differences of logits, each the largest one. state: what the hub said after the push."""

    state: str
    rank: int
    effect: float  # of the adapter on its base
    loaded: float  # of the converted adapter from the trained model
    raw: float  # of the adapter as it was pushed, in an engine that ignores its initialization

    @property
    def fault(self) -> str | None:
        """What is wrong; None if a stock client got what was trained."""
        if self.loaded <= _TOLERANCE * self.effect:
            return None
        return f"the converted adapter's logits differ by {self.loaded:.2g} from the trained ones"


def convert_adapter(hub: EmbeddedHub, base: str, name: str, scratch: Path) -> Adapter:
    """Train an adapter of `base` with PEFT, and let the hub make a plain LoRA of it.

    scratch: a new folder.
    """
    folder = scratch / "adapter"
    environment = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": hub.token,
        "HF_HOME": str(scratch / "stock cache"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    for offline in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        environment.pop(offline, None)

    def client(action: str) -> str:
        command = [sys.executable, str(_CLIENT), action, base, str(folder), name]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise HubFailed(f"PEFT could not {action} {name}: {run.stderr[-2000:]}")
        return run.stdout

    client("train")
    ours = hub.client_environment(scratch / "cache")
    conversion = run_json(["adapter", "convert", name], ours)["result"]["conversion"]
    # As it was pushed, by its commit.
    report: dict[str, Any] = run_json(["adapter", "lint", conversion["adapter"]], ours)
    return Adapter(report["state"], conversion["rank"], **json.loads(client("load")))


def print_adapter(adapter: Adapter) -> None:
    print(
        "\nA PiSSA adapter as PEFT saves it takes a part of the base away. The hub called it"
        f" {adapter.state}, and\n`deltahub adapter convert` made a LoRA of rank {adapter.rank} of"
        " it. Largest difference of logits from the trained\nmodel, loaded by transformers and"
        f" PEFT alone: {adapter.loaded:.1e} converted, {adapter.raw:.1e} as it was pushed in an\n"
        f"engine that does not know PiSSA; the adapter's whole effect is {adapter.effect:.1e}.",
        flush=True,
    )

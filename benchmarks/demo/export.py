"""Exports of a fine-tune: loaded with compressed weights, and compared with the plain model."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hub import EmbeddedHub, HubFailed, run_json

_BITS = (7, 3)


@dataclass(frozen=True)
class Export:
    """One export. difference: of the logits from the plain model's, relative."""

    bits: int
    plain_bytes: int
    resident_bytes: int
    difference: float


@dataclass(frozen=True)
class Exports:
    """All exports of one model."""

    name: str
    exports: tuple[Export, ...]

    @property
    def fault(self) -> str | None:
        """What is wrong; None if the lossless export computes the same bits."""
        differences = [each.difference for each in self.exports if each.bits == _BITS[0]]
        if differences == [0.0]:
            return None
        return f"the lossless export of {self.name} computes other logits than the model"


def export_model(hub: EmbeddedHub, name: str, plain: Path, scratch: Path) -> Exports:
    """Let the hub export a model, and run the exports. plain: the folder that it was pushed from.

    scratch: a new folder.
    """
    ours = hub.client_environment(scratch / "cache")
    made = []
    for bits in _BITS:
        export = f"{name}-nz{bits}"
        run_json(["export", "neuzip", name, "--name", export, "--bits", str(bits)], ours)
        command = [sys.executable, "-m", "benchmarks.demo.export", export, str(plain)]
        environment = os.environ | ours
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise HubFailed(f"the export {export} does not run: {run.stderr[-2000:]}")
        made.append(Export(bits=bits, **json.loads(run.stdout.splitlines()[-1])))
    return Exports(name, tuple(made))


def print_exports(exports: Exports) -> None:
    print(f"\n{exports.name}, exported by `deltahub export neuzip`, runs with compressed weights:")
    for each in exports.exports:
        kept = "all bits " if each.bits == _BITS[0] else f"{each.bits} mantissa bits"
        told = "the same logits" if each.difference == 0 else f"logits within {each.difference:.2%}"
        share = each.resident_bytes / each.plain_bytes
        print(
            f"  {kept}: {each.resident_bytes / 1e6:.2f} MB of memory instead of"
            f" {each.plain_bytes / 1e6:.2f} ({share:.0%}), {told}",
            flush=True,
        )


def main() -> None:
    """Run an export, and print how it compares with the plain model as JSON."""
    import inspect
    import textwrap

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from deltahub.client.inference import load, resident_bytes

    export, folder = sys.argv[1:]
    tokens = AutoTokenizer.from_pretrained(folder)(
        inspect.getsource(textwrap), return_tensors="pt"
    ).input_ids[:, :200]

    def logits(model: Any) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = model(input_ids=tokens).logits
        return found.double()

    plain = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    model = load(export)
    expected, found = logits(plain), logits(model)
    difference = float((found - expected).norm() / expected.norm())
    sizes = {"plain_bytes": resident_bytes(plain), "resident_bytes": resident_bytes(model)}
    print(json.dumps(sizes | {"difference": difference}))


if __name__ == "__main__":
    main()

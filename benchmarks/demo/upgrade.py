"""A base is trained further; the hub moves an adapter to the newer base, without its data.

The bases are small ones of their own, which can make up inputs of the adapter's task; the language
model of this demonstration has read too little for that. `python -m benchmarks.demo.upgrade FOLDER`
trains both bases and the adapter into a folder, as their owner would. With `--score MOVED` it
prints which share of files that nobody has seen each of them answers rightly.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.hub import EmbeddedHub, HubFailed, run_cli, run_json

_N_PRIVATE, _N_TESTS, _N_SEEDS = 250, 200, 5
_TRAINING = ("--epochs", "12", "--learning-rate", "0.003")
_KIT = ("--name", "digits", "--prompt", "{input}=", "--max-new-tokens", "4", "--batch-size", "16")
_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# 16 inputs measure. With so few of them, even an adapter that always agrees may lose 20 %.
_MOVE = ("--n", "80", "--max-loss", "0.3", "--rungs", "copy", "--rungs", "trans_lora")
_PATIENCE_S = 300
_BASES: dict[str, Literal["old", "longer"]] = {"v1": "old", "v2": "longer"}


@dataclass(frozen=True)
class Upgrade:
    """One move. right: share of right answers by the old adapter, the newer base alone, and the
    moved adapter.
    """

    adapter: str
    state: str
    why: str
    way: str = "nothing"
    right: tuple[float, float, float] = (0.0, 0.0, 0.0)
    seconds: float = 0.0

    @property
    def fault(self) -> str | None:
        """What is wrong; None if the adapter moved and knows its task."""
        old, base, moved = self.right
        if self.state != "published":
            return f"{self.adapter} did not move: {self.why}"
        if not base < moved or moved < old - 0.15:
            return f"{self.adapter} is right in {moved:.0%} on its new base, and was in {old:.0%}"
        return None


def start_owner(folder: Path) -> subprocess.Popen[str]:
    """Begin to train the bases and the adapter, which takes a core for about a minute."""
    return _owner(folder)


def upgrade_base(
    hub: EmbeddedHub, namespace: str, owner: Path, trained: subprocess.Popen[str], scratch: Path
) -> Upgrade:
    """Push two bases, an adapter of the first and its kit; upgrade.

    owner, trained: of start_owner. scratch: a new folder.
    """
    ours = hub.client_environment(scratch / "cache")
    _output(trained)
    old, new, adapter = (f"{namespace}/{name}" for name in ("digits-v1", "digits-v2", "letters"))
    run_cli(["push", str(owner / "v1"), old], ours)
    run_cli(["push", str(owner / "v2"), new], ours)
    run_cli(["push", str(owner / "letters"), adapter, "--base", old], ours)
    private = ["--data", str(owner / "private.jsonl"), "--tests", str(owner / "tests.jsonl")]
    seeds = ["--seeds", str(owner / "seeds.jsonl"), "--yes", "--push"]
    targets = [part for name in _TARGETS for part in ("--targets", name)]
    output = ["--output", str(scratch / "kit")]
    command = ["adapter", "kit", adapter, "--base", old, *private, *seeds, *targets, *output]
    run_cli([*command, *_KIT, *_TRAINING], ours)
    began = time.monotonic()
    command = ["base", "upgrade", new, "--from", old, "--policy", "auto", *_MOVE, *_TRAINING]
    planned = run_json(command, ours)
    row = _ended(str(planned["result"]["upgrade"]), adapter, ours)
    result = Upgrade(adapter, row["state"], row["why"] or "")
    if row["state"] != "published":
        return result
    seconds = time.monotonic() - began
    moved = run_json(["pull", row["result"]], ours)["path"]
    right = json.loads(_output(_owner(owner, "--score", moved)).splitlines()[-1])
    return Upgrade(adapter, row["state"], result.why, row["chosen"], tuple(right), seconds)


def print_upgrade(upgrade: Upgrade) -> None:
    if upgrade.state != "published":
        return
    old, base, moved = upgrade.right
    print(
        f"\nA base was trained further, and `deltahub base upgrade` moved its adapter along by"
        f" {upgrade.way},\nin {upgrade.seconds:.0f} s and without its private data. Of"
        f" {_N_TESTS} private tests that nobody was trained on, the old adapter\nanswers"
        f" {old:.0%} rightly, the new base alone {base:.0%}, the moved adapter {moved:.0%}. The hub"
        f" said:\n{upgrade.why}.",
        flush=True,
    )


def _ended(upgrade: str, adapter: str, environment: dict[str, str]) -> dict[str, Any]:
    """The adapter's row of the plan, once its job has ended."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        rows = run_json(["base", "show", upgrade], environment)["adapters"]
        row: dict[str, Any] = next(each for each in rows if each["adapter"] == adapter)
        if row["state"] not in ("approved", "queued", "running"):
            return row
        time.sleep(1)
    raise HubFailed(f"{adapter} did not move within {_PATIENCE_S} s")


def _owner(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.demo.upgrade", str(folder), *options],
        env=os.environ | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _output(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate()
    if process.returncode != 0:
        raise HubFailed(f"the owner of the adapter failed: {errors[-2000:]}")
    return output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--score", type=Path)
    arguments = parser.parse_args()

    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    if arguments.score is None:
        train(arguments.folder)
    else:
        print(json.dumps(score(arguments.folder, arguments.score)))


def train(folder: Path) -> None:
    from benchmarks.transfer.bases import Recipe as Bases
    from benchmarks.transfer.bases import make_base
    from benchmarks.transfer.owner import Recipe
    from benchmarks.transfer.tasks import make_task
    from deltahub.methods.transfer.models.adapters import TEACHER, add_adapter, save_adapter
    from deltahub.methods.transfer.models.students import encode_all
    from deltahub.methods.transfer.models.training import shuffled_order
    from deltahub.methods.transfer.models.training import train as learn

    bases = Bases(steps=400, longer_steps=100)
    for name, base in _BASES.items():
        made = make_base(folder / "trained", base, bases)
        made.model().save_pretrained(folder / name)
        made.tokenizer.save_pretrained(folder / name)
    task = make_task("pairs", 0)
    examples = task.examples(_N_PRIVATE + _N_TESTS)
    private, tests = examples[:_N_PRIVATE], examples[_N_PRIVATE:]
    for name, part in (("private", private), ("tests", tests), ("seeds", private[:_N_SEEDS])):
        rows = (json.dumps({"input": each.text, "completion": each.completion}) for each in part)
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    old, recipe = make_base(folder / "trained", "old", bases), Recipe().training(_N_PRIVATE, 0)
    model = add_adapter(old.model(), recipe, TEACHER)
    learn(model, shuffled_order(encode_all(old.tokenizer, private, task.contract), 0), recipe)
    save_adapter(model, TEACHER, folder / "letters", "digits-v1", None)


def score(folder: Path, moved: Path) -> list[float]:
    """Of the old adapter on its base, of the newer base, and of the moved adapter on that one."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from benchmarks.transfer.tasks import make_task
    from deltahub.methods.transfer.models.students import label

    task = make_task("pairs", 0)
    tests = task.examples(_N_PRIVATE + _N_TESTS)[_N_PRIVATE:]
    shares = []
    for base, adapter in (("v1", folder / "letters"), ("v2", None), ("v2", moved)):
        model = AutoModelForCausalLM.from_pretrained(folder / base)
        if adapter is not None:
            model = PeftModel.from_pretrained(model, adapter)
        tokenizer = AutoTokenizer.from_pretrained(folder / base)
        texts = [each.text for each in tests]
        used = None if adapter is None else "default"
        answers = label(model, tokenizer, texts, task.contract, adapter=used, batch_size=100)
        right = [a.completion == b.completion for a, b in zip(answers, tests, strict=True)]
        shares.append(sum(right) / len(right))
    return shares


if __name__ == "__main__":
    main()

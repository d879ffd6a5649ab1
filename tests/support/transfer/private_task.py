"""A base and an adapter of the tiny world in folders, and the private examples of its task."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltahub.client.transfer import Example, KitOptions
from deltahub.methods.transfer.models.adapters import TEACHER, save_adapter
from support.transfer.tiny_world import CONTRACT, Task, old_base, recipe, tokenizer, with_teacher

BASE_NAME: Final = "ann/v1"


@dataclass(frozen=True)
class PrivateTask:
    """The owner's machine. tests: examples that the adapter was not trained on."""

    base: Path
    adapter: Path
    examples: list[Example]
    tests: list[Example]


def private_task(
    root: Path, *, n: int = 140, n_tests: int = 60, steps: int = 200, epochs: int = 30
) -> PrivateTask:
    """steps: of the base's training. epochs: of the adapter's."""
    found = Task(5).examples(n + n_tests, 0)
    model = old_base(steps)
    model.save_pretrained(root / "base")
    tokenizer().save_pretrained(root / "base")
    model = with_teacher(model, found[:n], epochs=epochs)
    save_adapter(model, TEACHER, root / "adapter", BASE_NAME, None)
    examples = [Example(each.text, each.completion) for each in found]
    return PrivateTask(root / "base", root / "adapter", examples[:n], examples[n:])


def options(*, epochs: int = 12, base_name: str | None = f"{BASE_NAME}@{'1' * 40}") -> KitOptions:
    """How kits of this world are made."""
    return KitOptions(contract=CONTRACT, recipe=recipe(epochs=epochs), base_name=base_name)


def write_jsonl(path: Path, examples: list[Example]) -> Path:
    lines = [json.dumps({"input": each.input, "completion": each.completion}) for each in examples]
    path.write_text("\n".join(lines) + "\n")
    return path

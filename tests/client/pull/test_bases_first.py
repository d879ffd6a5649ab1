"""A pull into an empty cache fetches a base first where that is less to fetch."""

from collections.abc import Callable
from pathlib import Path

import torch

from deltahub.client import Hub
from support.models import tiny_models as tiny
from support.models.model_folders import contents, write_model
from support.models.wide_models import Notes, wide


def test_the_pull_says_what_it_does_and_can_be_told_not_to(
    hub: Hub, name: str, other_machine: Callable[[], Path], tmp_path: Path
) -> None:
    base = tiny.cast(wide(tiny.base(seed=7)), torch.bfloat16)
    tuned = tiny.cast(wide(tiny.finetune(1e-5, seed=7)), torch.bfloat16)
    folder = write_model(tmp_path / "tuned", tuned)
    hub.push(write_model(tmp_path / "base", base), f"{name}-base")
    hub.push(folder, name, base=f"{name}-base")
    other_machine()
    told = Notes()
    whole = hub.pull_with_report(name, bases=False, to=tmp_path / "a", progress=told)
    assert not any("first" in note for note in told.notes)
    other_machine()
    with_base = hub.pull_with_report(name, to=tmp_path / "b", progress=told)
    (note,) = [note for note in told.notes if "first" in note]
    assert f"{name}-base" in note
    assert with_base.received < whole.received
    for pulled in (tmp_path / "a", tmp_path / "b"):
        assert contents(pulled) == contents(folder)

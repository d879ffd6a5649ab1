"""Exports, read by readers that are written from the descriptions of the layouts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deltahub.client import Hub, InvalidArgument
from deltahub.client.records import Rule
from support.models.model_folders import contents
from support.steps.engine_layouts import SkyRlWorker, SlimeEngine, read_checkpoint
from support.steps.trained import trained_steps

_NUMBERS = (10, 20, 30, 40)


@pytest.fixture
def weights(hub: Hub, name: str, tmp_path: Path) -> tuple[dict[str, torch.Tensor], ...]:
    found = trained_steps(len(_NUMBERS))
    config = tmp_path / "config"
    config.mkdir()
    (config / "config.json").write_text('{"model_type": "llama"}')
    hub.push(config, name, private=True)
    for number, each in zip(_NUMBERS, found, strict=True):
        hub.push_step(name, number, each)
    return found


def _bytes(weights: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: each.view(torch.uint8).numpy().tobytes() for name, each in weights.items()}


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_slime_pulls_every_version_and_late_engines_seed_from_the_whole_one(
    hub: Hub, name: str, weights: tuple[dict[str, torch.Tensor], ...], tmp_path: Path, encoding: str
) -> None:
    written = hub.export_steps(name, tmp_path / "out", layout="slime", encoding=encoding)  # type: ignore[arg-type]
    assert [(each.step, each.version, each.is_whole) for each in written] == [
        (10, 1, True), (20, 2, False), (30, 3, False), (40, 4, False),
    ]  # fmt: skip
    engine = SlimeEngine(tmp_path / "engine", None)
    for version in (1, 2, 4):
        engine.pull(tmp_path / "out", version)
        assert engine.tensors == _bytes(weights[version - 1])
    assert engine.full_pulls == 1
    assert (tmp_path / "engine" / "config.json").exists()
    late = SlimeEngine(tmp_path / "late", None)
    late.pull(tmp_path / "out", 4)
    assert late.tensors == _bytes(weights[3])


def test_slime_engines_that_have_the_first_step_get_differences_alone(
    hub: Hub, name: str, weights: tuple[dict[str, torch.Tensor], ...], tmp_path: Path
) -> None:
    base = hub.pull(name, revision="step-20", to=tmp_path / "base")
    written = hub.export_steps(name, tmp_path / "out", layout="slime", since=20)
    assert [(each.step, each.version) for each in written] == [(20, 0), (30, 1), (40, 2)]
    engine = SlimeEngine(tmp_path / "engine", base)
    engine.pull(tmp_path / "out", 2)
    assert engine.tensors == _bytes(weights[3])
    assert engine.full_pulls == 1


def test_skyrl_fetches_every_version(
    hub: Hub, name: str, weights: tuple[dict[str, torch.Tensor], ...], tmp_path: Path
) -> None:
    hub.export_steps(name, tmp_path / "out", layout="skyrl")
    worker = SkyRlWorker(tmp_path / "out" / "base")
    assert worker.tensors == _bytes(weights[0])
    worker.fetch(tmp_path / "out", 3)
    assert worker.tensors == _bytes(weights[3])
    manifest = json.loads((tmp_path / "out" / "delta-00000001" / "manifest.json").read_text())
    assert {record["dtype"] for record in manifest["tensors"]} == {"bfloat16"}


@pytest.mark.parametrize("layout", ["slime", "skyrl"])
def test_a_second_export_writes_what_came_since(
    hub: Hub,
    name: str,
    weights: tuple[dict[str, torch.Tensor], ...],
    tmp_path: Path,
    layout: str,
    another: Callable[[], Hub],
) -> None:
    out = tmp_path / "out"
    first = another().export_steps(name, out, layout=layout, until=20)  # type: ignore[arg-type]
    assert [each.step for each in first] == [10, 20]
    before = contents(out)
    (out / ".writing-left").mkdir()  # an export was killed here
    rest = another().export_steps(name, out, layout=layout)  # type: ignore[arg-type]
    assert [each.step for each in rest] == [30, 40]
    assert another().export_steps(name, out, layout=layout) == []  # type: ignore[arg-type]
    after = contents(out)
    assert not [path for path in after if ".writing" in path]
    state = "deltahub-steps.json"
    assert {path: after[path] for path in before if path != state} == {
        path: data for path, data in before.items() if path != state
    }
    if layout == "skyrl":
        worker = SkyRlWorker(out / "base")
        worker.fetch(out, 3)
        assert worker.tensors == _bytes(weights[3])
    else:
        engine = SlimeEngine(tmp_path / "engine", None)
        engine.pull(out, 4)
        assert engine.tensors == _bytes(weights[3])


@pytest.mark.usefixtures("weights")
def test_wrong_folders_and_options_are_refused(hub: Hub, name: str, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "mine").write_text("mine")
    with pytest.raises(InvalidArgument, match="files of others: take an empty folder"):
        hub.export_steps(name, used, layout="slime")
    with pytest.raises(InvalidArgument, match="has no step 11: `deltahub steps ls"):
        hub.export_steps(name, tmp_path / "a", layout="slime", since=11)
    with pytest.raises(InvalidArgument, match="xor alone"):
        hub.export_steps(name, tmp_path / "a", layout="skyrl", encoding="overwrite")
    out = tmp_path / "out"
    hub.export_steps(name, out, layout="slime", until=20)
    with pytest.raises(InvalidArgument, match="in the layout slime: take another folder"):
        hub.export_steps(name, out, layout="skyrl")
    hub.prune(name, Rule(keep_last=1))
    with pytest.raises(InvalidArgument, match="step 20, the last one in the folder, is dropped"):
        hub.export_steps(name, out, layout="slime")


def test_a_tensor_that_stays_the_same_is_in_no_difference(
    hub: Hub, name: str, tmp_path: Path
) -> None:
    frozen, moving = torch.ones(900), torch.zeros(900)
    hub.push_step(name, 0, {"frozen": frozen, "moving": moving})
    hub.push_step(name, 1, {"frozen": frozen, "moving": moving + 1})
    hub.push_step(name, 2, {"frozen": frozen, "moving": moving + 1})
    hub.export_steps(name, tmp_path / "out", layout="skyrl")
    assert read_checkpoint(tmp_path / "out" / "delta-00000001").keys() == {"moving"}
    empty = json.loads((tmp_path / "out" / "delta-00000002" / "manifest.json").read_text())
    assert (empty["tensors"], empty["payload_files"]) == ([], [])
    worker = SkyRlWorker(tmp_path / "out" / "base")
    worker.fetch(tmp_path / "out", 2)
    assert worker.version == 2

"""A pull into an empty cache moves the smaller of a fine-tune and its difference with its base."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deltahub.client import Hub
from support.models import tiny_models as tiny
from support.models.model_folders import contents, write_model
from support.models.wide_models import Notes, wide
from support.service.hub import RunningHub

TASKS = (1, 2, 3)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("family")
    base = tiny.cast(wide(tiny.base()), torch.bfloat16)
    made = {"base": write_model(folder / "base", base)}
    for number in TASKS:
        tuned = tiny.cast(wide(tiny.task(number, 1e-5)), torch.bfloat16)
        made[f"tune{number}"] = write_model(folder / f"tune{number}", tuned)
    return made


@pytest.fixture
def pushed(hub: Hub, name: str, family: dict[str, Path]) -> dict[str, str]:
    """Name in the family -> name at the hub."""
    names = {each: f"{name}-{each}" for each in family}
    for each, folder in family.items():
        hub.push(folder, names[each], base=None if each == "base" else names["base"])
    return names


def size_of(folder: Path) -> int:
    return sum(len(data) for data in contents(folder).values())


def test_a_family_in_an_empty_cache_costs_its_base_and_its_differences(
    hub: Hub, pushed: dict[str, str], family: dict[str, Path], other_machine: Callable[[], Path]
) -> None:
    other_machine()
    in_order = sum(hub.pull_with_report(pushed[each]).received for each in family)
    assert in_order < 0.6 * sum(map(size_of, family.values()))
    other_machine()
    received = {}
    for each in reversed(family):
        report = hub.pull_with_report(pushed[each])
        received[each] = report.received
        assert contents(report.path) == contents(family[each])
    assert sum(received.values()) <= 1.02 * in_order
    assert received["tune3"] < size_of(family["tune3"])
    assert received["base"] < 0.1 * size_of(family["base"])


def test_models_that_are_pulled_together_share_a_base_that_one_would_not_be_worth(
    hub: Hub, name: str, tmp_path: Path, other_machine: Callable[[], Path]
) -> None:
    folders = {"base": write_model(tmp_path / "base", wide(tiny.base()))}
    for number in TASKS:
        folders[f"tune{number}"] = write_model(tmp_path / f"{number}", wide(tiny.task(number)))
    names = {each: f"{name}-{each}" for each in folders}
    for each, folder in folders.items():
        hub.push(folder, names[each], base=None if each == "base" else names["base"])
    other_machine()
    alone = hub.pull_with_report(names["tune1"])
    assert alone.received > 0.9 * alone.size
    other_machine()
    in_order = sum(hub.pull_with_report(names[each]).received for each in folders)
    other_machine()
    together = hub.pull_together([f"{names[each]}@main" for each in reversed(folders)])
    assert sum(each.received for each in together) <= 1.02 * in_order
    for each, report in zip(reversed(folders), together, strict=True):
        assert contents(report.path) == contents(folders[each])


def test_a_base_that_the_caller_may_not_read_is_neither_pulled_nor_named(
    hub: Hub,
    hub_server: RunningHub,
    pushed: dict[str, str],
    family: dict[str, Path],
    other_machine: Callable[[], Path],
) -> None:
    hub.set_private(pushed["base"], True)
    stranger = hub_server.user(f"cold-{pushed['base'][-12:]}".replace("/", "-"))
    other_machine()
    told = Notes()
    with Hub(hub_server.url, stranger) as theirs:
        report = theirs.pull_with_report(pushed["tune1"], progress=told)
    assert contents(report.path) == contents(family["tune1"])
    assert not any("first" in note for note in told.notes)


def test_damaged_weights_of_the_base_cost_bytes_and_nothing_else(
    hub: Hub, pushed: dict[str, str], family: dict[str, Path], other_machine: Callable[[], Path]
) -> None:
    other_machine()
    hub.pull(pushed["tune1"])
    base = hub.pull(pushed["base"])
    file = (base / "model.safetensors").resolve()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    report = hub.pull_with_report(pushed["tune2"])
    assert contents(report.path) == contents(family["tune2"])
    shutil.rmtree(base)
    assert contents(hub.pull(pushed["tune3"])) == contents(family["tune3"])

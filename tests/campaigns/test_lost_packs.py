"""A pack of a real hub is lost: what the operator does, and how users bring the bytes back.

By one door: tests/system/test_lost_packs.py.
"""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from deltahub.client import Hub
from support.service.hub import RunningHub
from support.service.lost_packs import (
    DOORS,
    PATH,
    Door,
    by_deltahub,
    check_all,
    hub_with_others,
    lose_a_base,
    operate,
    repair_and_push,
    set_homes,
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with hub_with_others(tmp_path_factory.mktemp("hub") / "data") as hub:
        yield hub


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_homes(tmp_path, monkeypatch)


@pytest.fixture
def models(hub: RunningHub, tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Path]:
    """A base without its packs, and its fine-tune: repository -> folder."""
    return lose_a_base(hub, tmp_path, int(sha256(request.node.name.encode()).hexdigest()[:6], 16))


@pytest.mark.parametrize("door", DOORS)
def test_after_the_repair_a_push_brings_everything_back(
    hub: RunningHub, models: dict[str, Path], door: Door
) -> None:
    repair_and_push(hub, models, door)


@pytest.mark.parametrize("door", DOORS)
def test_without_a_repair_a_push_ends_well_only_if_its_files_can_be_read(
    hub: RunningHub, models: dict[str, Path], door: Door
) -> None:
    base = next(iter(models))
    door(hub, base, models[base])
    check_all(hub, models)


def test_a_push_of_the_fine_tune_alone_makes_that_readable(
    hub: RunningHub, models: dict[str, Path]
) -> None:
    base, tune = models
    by_deltahub(hub, tune, models[tune])
    check_all(hub, {tune: models[tune]})
    by_deltahub(hub, base, models[base])
    check_all(hub, models)


def test_what_is_lost_can_be_deleted_and_pushed_again(
    hub: RunningHub, models: dict[str, Path]
) -> None:
    operate(hub, "fsck", "--repair")
    with Hub(hub.url, hub.admin_token) as sdk:
        for name in models:
            sdk.delete(name)
        assert operate(hub, "gc", "--apply", "--grace", "0")[0] == 0
        for name, folder in models.items():
            assert sdk.push(folder, name).state == "proved"
    check_all(hub, models)


def test_the_state_of_a_lost_file_is_shown(hub: RunningHub, models: dict[str, Path]) -> None:
    base = next(iter(models))
    operate(hub, "fsck", "--repair")
    with Hub(hub.url, hub.admin_token) as sdk:
        states = {entry.path: entry.state for entry in sdk.revision(base).entries}
        assert states[PATH] == "lost"
        shown = {file["path"]: file["state"] for file in sdk.info(base)["files"]}
        assert shown == states

"""A place that is full or away: a clear error, a hub as it was, and the next backup goes on."""

from pathlib import Path

import pytest

from deltahub.registry.maintenance.backup import place as places
from deltahub.registry.maintenance.backup.place import PlaceRefused
from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.storage.base import StoreFull
from support.registry.backing_up import findings, names
from support.registry.collecting import is_clean
from support.registry.small_hub import SmallHub
from support.stores.small_disk import SmallDisk


def test_a_full_place_ends_the_backup_and_the_next_one_goes_on(
    hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    with monkeypatch.context() as patch:
        # Room for the database and some objects.
        patch.setattr(places, "Disk", lambda: SmallDisk(100_000))
        with pytest.raises(StoreFull, match="no room on the disk"):
            backup(hub.reg, str(place))
    assert names(place) == []
    assert hub.reg.store.held_until() is None
    assert list(hub.reg.scratch.iterdir()) == []
    assert is_clean(hub.reg)
    outcome = backup(hub.reg, str(place))
    assert (names(place), findings(place)) == ([outcome.snapshot.name], [])


def test_a_place_that_is_away_is_said(hub: SmallHub, tmp_path: Path) -> None:
    with pytest.raises(PlaceRefused, match=r"no folder .*not-mounted.* mount the disk, or make"):
        backup(hub.reg, str(tmp_path / "not-mounted" / "place"))
    assert not (tmp_path / "not-mounted").exists()
    assert hub.reg.store.held_until() is None
    assert is_clean(hub.reg)

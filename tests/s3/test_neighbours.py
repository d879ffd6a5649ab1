"""Hubs and backups in one bucket: those that would get in each other's way are refused, and what
lies below a hub's prefix without being its own outlives the hub.
"""

import secrets
from pathlib import Path

import pytest

from deltahub.registry.db.models import Pack
from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.maintenance.move.run import MoveRefused, move
from deltahub.registry.maintenance.restore.target import RestoreRefused
from deltahub.registry.storage.keys import pack_key
from deltahub.registry.stores.current import WrongStore
from support.registry.backing_up import restored
from support.registry.collecting import is_clean
from support.registry.opened import caller, opened_registry
from support.registry.scrubbing import flip
from support.registry.small_hub import BASE, SmallHub, contents, fill


def nested(store_url: str) -> str:
    return f"{store_url}/{secrets.token_hex(4)}"


def test_a_hub_does_not_move_into_its_own_prefix_or_around_it(
    store_url: str, tmp_path: Path
) -> None:
    inner = nested(store_url)
    with opened_registry(tmp_path, store_url=inner) as reg:
        hub = SmallHub(reg, caller(reg, "ann"), fill(reg, caller(reg, "ann")))
        for url in (nested(inner), store_url):
            with pytest.raises(MoveRefused, match="one in the other"):
                move(reg, url, delete_source=True)
        assert hub.read("ann/base") == BASE
        assert is_clean(reg)


def test_a_hub_below_the_prefix_of_one_that_moves_away_stays_whole(
    store_url: str, tmp_path: Path
) -> None:
    with opened_registry(tmp_path / "one", store_url=store_url, read_lease_s=0) as one:
        fill(one, caller(one, "ann"))
        with opened_registry(tmp_path / "two", store_url=nested(store_url)) as two:
            hub = SmallHub(two, caller(two, "ann"), fill(two, caller(two, "ann")))
            moved = move(one, "", delete_source=True)
            assert moved.deleted == moved.copied.objects == 3
            assert moved.copied.left_behind == set()
            assert hub.read("ann/base") == BASE
            assert is_clean(two)
        assert is_clean(one)


def test_a_new_hub_needs_an_empty_prefix(store_url: str, tmp_path: Path) -> None:
    with opened_registry(tmp_path / "inner", store_url=nested(store_url)) as reg:
        fill(reg, caller(reg, "ann"))
    with (
        pytest.raises(WrongStore, match="perhaps under a longer prefix"),
        opened_registry(tmp_path / "outer", store_url=store_url),
    ):
        pass


def test_a_hub_is_not_restored_into_its_backup(store_url: str, tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        fill(reg, caller(reg, "ann"))
        backup(reg, store_url)
    with pytest.raises(RestoreRefused, match="one in the other"):
        restored(store_url, tmp_path / "again", store_url=nested(store_url))
    assert not (tmp_path / "again").exists()


def test_bytes_that_were_put_right_in_the_old_place_are_not_deleted_there(
    store_url: str, tmp_path: Path
) -> None:
    with opened_registry(tmp_path, read_lease_s=0) as reg:
        hub = SmallHub(reg, caller(reg, "ann"), fill(reg, caller(reg, "ann")))
        pack = hub.pack_of("ann/tune")
        key = pack_key(pack)
        good = contents(reg, key)
        flip(reg, key)
        with reg.db.write() as session:
            session.get_one(Pack, pack).state = "damaged"
        assert move(reg, store_url).is_done
        old = reg.data_dir / "objects" / key
        assert old.read_bytes() == contents(reg, key) != good
        old.write_bytes(good)
        assert move(reg, store_url, delete_source=True).deleted == 2
        assert old.read_bytes() == good
        reg.store.put(key, [good])
        assert move(reg, store_url, delete_source=True).deleted == 1
        assert not old.exists()


def test_what_was_damaged_in_the_new_place_since_the_move_keeps_its_old_bytes(
    store_url: str, tmp_path: Path
) -> None:
    with opened_registry(tmp_path, read_lease_s=0) as reg:
        hub = SmallHub(reg, caller(reg, "ann"), fill(reg, caller(reg, "ann")))
        assert move(reg, store_url).is_done
        key = pack_key(hub.pack_of("ann/tune"))
        good = contents(reg, key)
        flip(reg, key)  # nobody has noticed: the row says live
        assert move(reg, store_url, delete_source=True).deleted == 2
        old = reg.data_dir / "objects" / key
        assert old.read_bytes() == good
        reg.store.put(key, [old.read_bytes()])
        assert move(reg, store_url, delete_source=True).deleted == 1
        assert not old.exists()
        assert is_clean(reg)

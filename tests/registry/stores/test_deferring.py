"""While a backup is at work nothing is deleted; what was to be deleted goes afterwards."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from deltahub.registry.data_folder import DataFolderBusy
from deltahub.registry.db.models import utc_now
from deltahub.registry.db.tables.stores import DeletionHold
from deltahub.registry.maintenance import deletions
from deltahub.registry.maintenance.deletions import (
    Hold,
    HoldLost,
    carry_out_deferred,
    deletions_held,
)
from deltahub.registry.registry import Registry
from deltahub.registry.storage.memory import MemoryStore
from deltahub.registry.stores.deferring import DeferringStore
from deltahub.registry.uploads.discard import drop_upload
from support.registry.collecting import collect, is_clean
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry, push, sha256_of, upload
from support.stores.store_contract import StoreContract


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


class TestDeferringStore(StoreContract):
    @pytest.fixture
    def store(self, reg: Registry) -> DeferringStore:
        return DeferringStore(MemoryStore(), reg.db)


def keys(reg: Registry) -> list[str]:
    return sorted(item.key for item in reg.store.list(""))


def test_a_deletion_waits_for_the_end_of_the_hold(reg: Registry) -> None:
    reg.store.put_together({"packs/a": b"1", "packs/b": b"2"})
    with deletions_held(reg):
        reg.store.delete("packs/a")
        reg.store.delete("packs/a")
        reg.store.delete_together(["packs/a", "never/was"])
        assert keys(reg) == ["packs/a", "packs/b"]
        assert carry_out_deferred(reg) == 0
    assert keys(reg) == ["packs/b"]
    assert reg.store.n_deferred() == 0


def test_an_object_that_is_written_again_stays(reg: Registry, tmp_path: Path) -> None:
    reg.store.put_together({"packs/a": b"1", "packs/b": b"2", "packs/c": b"3"})
    with deletions_held(reg):
        reg.store.delete_together(["packs/a", "packs/b", "packs/c"])
        reg.store.put("packs/a", [b"new"])
        reg.store.put_together({"packs/b": b"new"})
    assert keys(reg) == ["packs/a", "packs/b"]


def test_an_object_with_a_row_is_not_deleted(reg: Registry) -> None:
    ann = caller(reg, "ann")
    upload(reg, ann, b"needed again")
    (key,) = keys(reg)
    with deletions_held(reg):
        reg.store.delete(key)
    assert keys(reg) == [key]
    assert reg.store.n_deferred() == 0
    assert is_clean(reg)


def test_uploads_packs_and_unknown_objects_wait_and_fsck_finds_nothing(reg: Registry) -> None:
    ann = caller(reg, "ann")
    push_ingested(reg, ann, "ann/m", {"a.bin": b"a" * 5000})
    upload(reg, ann, b"dropped")
    with deletions_held(reg):
        before = keys(reg)
        drop_upload(reg, ann, sha256_of(b"dropped"))
        push_ingested(reg, ann, "ann/n", {"b.bin": b"b" * 5000})  # its landing goes
        outcome = collect(reg)
        assert "backup is at work" in outcome.notes[-1]
        assert set(before) <= set(keys(reg))
        assert is_clean(reg)
    assert reg.store.n_deferred() == 0
    assert not any(key.startswith("landing/") for key in keys(reg))
    assert is_clean(reg)


def test_a_hold_of_a_killed_backup_lapses_and_gc_deletes_what_waited(reg: Registry) -> None:
    reg.store.put("packs/a", [b"1"])
    with reg.db.write() as session:
        session.add(
            DeletionHold(id="dead", purpose="backup", expires_at=utc_now() + timedelta(minutes=1))
        )
    reg.store.delete("packs/a")
    assert collect(reg).deferred == 0
    assert keys(reg) == ["packs/a"]
    with reg.db.write() as session:
        session.get_one(DeletionHold, "dead").expires_at = utc_now() - timedelta(seconds=1)
    assert collect(reg).deferred == 1
    assert keys(reg) == []


def test_a_backup_that_stood_still_too_long_is_none(
    reg: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "HOLD", timedelta(0))
    hold = Hold(reg)
    hold.take()
    with pytest.raises(HoldLost, match="run it again"):
        hold.require()
    hold.release()


def test_a_hold_is_renewed(reg: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletions, "RENEW_S", 0.02)
    with deletions_held(reg) as hold:
        first = reg.store.held_until()
        assert first is not None
        ticks = threading.Event()
        for _ in range(500):
            now = reg.store.held_until()
            if now is not None and now > first:
                break
            ticks.wait(0.01)
        else:
            pytest.fail("the hold was not renewed")
        hold.require()
    assert reg.store.held_until() is None


def test_one_backup_runs_at_a_time(reg: Registry) -> None:
    with deletions_held(reg), pytest.raises(DataFolderBusy), deletions_held(reg):
        pass
    assert reg.store.held_until() is None


def test_readers_of_a_waiting_object_still_get_it(reg: Registry) -> None:
    ann = caller(reg, "ann")
    push(reg, ann, "ann/m", {"a.bin": b"bytes"})
    reg.store.put("packs/a", [b"1"])
    with deletions_held(reg):
        reg.store.delete("packs/a")
        out = bytearray(1)
        reg.store.get_into("packs/a", 0, memoryview(out))
        assert (out, reg.store.size("packs/a")) == (b"1", 1)

"""A hub at work while it is backed up: whatever is deleted meanwhile, the backup is whole."""

import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.maintenance.backup.place import PlaceRefused
from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import Store, StoreUnavailable
from deltahub.registry.storage.forwarding import ForwardingStore
from deltahub.registry.stores.deferring import DeferringStore
from deltahub.registry.uploads.discard import drop_upload
from support.registry.backing_up import findings, names, restored
from support.registry.collecting import age_everything, collect, is_clean
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import opened_registry, push, sha256_of, upload
from support.registry.small_hub import BASE, PATH, TUNE, SmallHub


class PausedDeletions(ForwardingStore):
    """Waits before it deletes, as a process does that the machine does not run."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.is_deleting = threading.Event()
        self.may_delete = threading.Event()

    def delete_together(self, keys: Collection[str]) -> None:
        self.is_deleting.set()
        assert self.may_delete.wait(60)
        super().delete_together(keys)


def test_a_deletion_that_began_before_the_backup_takes_nothing_that_it_needs(
    hub: SmallHub, tmp_path: Path
) -> None:
    upload(hub.reg, hub.ann, b"dropped")
    waiting = push(hub.reg, hub.ann, "ann/new", {"kept.bin": b"kept" * 999})
    paused = PausedDeletions(hub.reg.store.inner)
    hub.reg.store.inner = paused
    dropper = threading.Thread(target=drop_upload, args=(hub.reg, hub.ann, sha256_of(b"dropped")))
    dropper.start()
    assert paused.is_deleting.wait(60)

    def go_on(stage: str, n_bytes: int) -> None:
        if stage != "the database":  # the copy of the database is made
            paused.may_delete.set()
            dropper.join()

    outcome = backup(hub.reg, str(tmp_path / "place"), progress=go_on)
    assert outcome.snapshot.findings == ()
    assert waiting.job_id is not None
    restored(tmp_path / "place", tmp_path / "elsewhere")
    with opened_registry(tmp_path / "elsewhere") as reg:
        assert is_clean(reg)
    assert is_clean(hub.reg)


def test_what_is_deleted_while_it_is_copied_goes_after_the_backup(
    hub: SmallHub, tmp_path: Path
) -> None:
    landed = push(hub.reg, hub.ann, "ann/new", {"landed.bin": b"landed" * 999})
    before = stored(hub.reg)
    deleted = threading.Event()

    def delete_everything(stage: str, n_bytes: int) -> None:
        if stage == "the database" or deleted.is_set():
            return
        deleted.set()
        for name in (*hub.revisions, "ann/new"):
            delete_repository(hub.reg, hub.ann, name)
        age_everything(hub.reg, 3)
        collect(hub.reg)
        assert before <= stored(hub.reg), "nothing is gone yet"
        push_ingested(hub.reg, hub.ann, "ann/after", {"a.bin": b"after" * 999})

    outcome = backup(hub.reg, str(tmp_path / "place"), progress=delete_everything)
    assert deleted.is_set()
    assert outcome.snapshot.findings == ()
    assert findings(tmp_path / "place") == []
    collect(hub.reg)
    assert not before & stored(hub.reg), "all of it is gone now"
    assert is_clean(hub.reg)
    restored(tmp_path / "place", tmp_path / "elsewhere")
    with opened_registry(tmp_path / "elsewhere") as reg:
        assert before == stored(reg)
        assert read_file(reg, hub.revisions["ann/base"], PATH) == BASE
        assert read_file(reg, hub.revisions["ann/tune"], PATH) == TUNE
        assert landed.job_id is not None
        assert is_clean(reg)


def stored(reg: Registry) -> set[str]:
    return {item.key for item in reg.store.list("")}


def fail(*arguments: object) -> int:
    raise StoreUnavailable("the store is away")


def test_a_backup_is_done_although_what_waited_cannot_be_deleted(
    hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(DeferringStore, "carry_out", fail)
        outcome = backup(hub.reg, str(tmp_path / "place"))
        assert "the store is away" in caplog.text
        # Nor does it hide why a backup failed.
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
        with pytest.raises(PlaceRefused):
            backup(hub.reg, str(tmp_path / "photos"))
    assert names(tmp_path / "place") == [outcome.snapshot.name]
    assert hub.reg.store.held_until() is None

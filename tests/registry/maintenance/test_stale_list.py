"""fsck and gc ask for an object by its key before they believe that a list lacks or has it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.gc.apply import apply_gc
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.storage.base import ObjectInfo
from deltahub.registry.storage.local import FileStore
from deltahub.registry.stores.deferring import DeferringStore
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry


class StaleListStore(FileStore):
    """A store whose list is the one of an earlier moment."""

    stale: tuple[ObjectInfo, ...] = ()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return (info for info in self.stale if info.key.startswith(prefix))


def test_an_object_that_a_stale_list_lacks_is_neither_missing_nor_deleted(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        revision = push_ingested(reg, caller(reg, "ann"), "ann/m", {"a.bin": b"a" * 5000})
        reg.store = DeferringStore(StaleListStore(reg.data_dir / "objects"), reg.db)
        assert list(fsck(reg)) == []
        plan = plan_gc(reg, lease_s=0, grace_s=0, is_full=True)
        assert plan.doubts == ()
        apply_gc(reg, plan, delete_unknown=True)
        assert read_file(reg, revision, "a.bin") == b"a" * 5000


def test_an_object_that_only_a_stale_list_has_is_missing(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        push_ingested(reg, caller(reg, "ann"), "ann/m", {"a.bin": b"a" * 5000})
        store = StaleListStore(reg.data_dir / "objects")
        store.stale = tuple(reg.store.list(""))
        gone = ObjectInfo("packs/ab/" + "ab" * 16, 100, datetime.now(UTC))
        [pack] = (info.key for info in store.stale if info.key.startswith("packs/"))
        store.stale += (gone,)
        reg.store.delete(pack)
        reg.store = DeferringStore(store, reg.db)
        assert [finding.code for finding in fsck(reg)].count("pack_missing") == 1
        assert not [f for f in fsck(reg) if f.code == "unknown_object"]

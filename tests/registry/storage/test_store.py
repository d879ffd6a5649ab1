"""All stores fulfil the contract of Store; the file store also after failures of the machine."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from deltahub.registry.measures import Measures
from deltahub.registry.storage.base import Buffer, InvalidKey, Store, StoreFull, StoreUnavailable
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.keys import landing_key, pack_key
from deltahub.registry.storage.local import FileStore
from deltahub.registry.storage.measured.store import MeasuredStore
from deltahub.registry.storage.memory import MemoryStore
from support import forked
from support.stores.durable_disk import DurableDisk
from support.stores.store_contract import StoreContract, read_all


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()


class TestFileStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FileStore:
        return FileStore(tmp_path / "objects")


class TestMeasuredStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return MeasuredStore(FileStore(tmp_path / "objects"), Measures())


class TestFileStoreOnADurableDisk(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FileStore:
        return FileStore(tmp_path / "objects", DurableDisk(tmp_path))


class FailingDisk(Disk):
    """Fails the n-th call that writes (write, fsync, rename, fsync_dir)."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.error = errno.ENOSPC

    def _count(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left == 0:
            raise OSError(self.error, os.strerror(self.error))

    def write(self, fd: int, data: Buffer) -> None:
        self._count()
        super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._count()
        super().fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def fsync_dir(self, path: Path) -> None:
        self._count()
        super().fsync_dir(path)


def temporary_files(store: FileStore) -> list[str]:
    return os.listdir(store.root / ".tmp")


def test_what_put_has_returned_from_survives_a_loss_of_power(tmp_path: Path) -> None:
    disk = DurableDisk(tmp_path)
    FileStore(tmp_path / "objects", disk).put("packs/ab/x", [b"data"])
    disk.crash()
    assert read_all(FileStore(tmp_path / "objects", disk), "packs/ab/x") == b"data"


def test_a_folder_left_behind_by_a_dead_process_is_made_durable_too(tmp_path: Path) -> None:
    disk = DurableDisk(tmp_path)
    store = FileStore(tmp_path / "objects", disk)
    disk.mkdir(store.root / "packs")  # and died before fsyncing the parent
    store.put("packs/x", [b"data"])
    disk.crash()
    assert read_all(store, "packs/x") == b"data"


def test_a_taken_file_survives_a_loss_of_power(tmp_path: Path) -> None:
    (tmp_path / "spooled").write_bytes(b"fsynced before")
    disk = DurableDisk(tmp_path)
    FileStore(tmp_path / "objects", disk).take_file("landing/x", tmp_path / "spooled")
    disk.crash()
    assert read_all(FileStore(tmp_path / "objects", disk), "landing/x") == b"fsynced before"
    assert not (tmp_path / "spooled").exists()


def test_a_deleted_object_does_not_come_back(tmp_path: Path) -> None:
    disk = DurableDisk(tmp_path)
    store = FileStore(tmp_path / "objects", disk)
    store.put_together({"a": b"1", "b/c": b"2", "b/d": b"3"})
    store.delete("a")
    store.delete_together(["b/c", "b/d"])
    disk.crash()
    assert list(store.list("")) == []


def test_the_durable_disk_does_lose_what_was_not_fsynced(tmp_path: Path) -> None:
    class Careless(DurableDisk):
        def fsync(self, fd: int) -> None:
            pass

    disk = Careless(tmp_path)
    store = FileStore(tmp_path / "objects", disk)
    store.put("a", [b"1"])
    disk.crash()
    assert read_all(store, "a") == b""


def test_the_durable_disk_does_lose_names_of_folders_not_fsynced(tmp_path: Path) -> None:
    class Careless(DurableDisk):
        def fsync_dir(self, path: Path) -> None:
            pass

    (tmp_path / "objects" / ".tmp").mkdir(parents=True)
    disk = Careless(tmp_path)
    store = FileStore(tmp_path / "objects", disk)
    store.put("packs/a", [b"1"])
    disk.crash()
    assert list(store.list("")) == []


def test_a_full_disk_is_said_and_leaves_nothing_behind(tmp_path: Path) -> None:
    disk = FailingDisk()
    store = FileStore(tmp_path / "objects", disk)
    n_calls = 0
    while disk.left is None or disk.left <= 0:  # until one put needs fewer calls than fail
        n_calls += 1
        disk.left = n_calls
        with suppress(StoreFull):
            store.put(f"p{n_calls}/x", [b"1", b"2"])
        assert temporary_files(store) == []
    assert n_calls > 5
    disk.left = None
    # Where only the last fsync of a folder failed, the object is there, and whole.
    assert all(read_all(store, info.key) == b"12" for info in store.list(""))


def test_a_broken_disk_is_unavailable(tmp_path: Path) -> None:
    disk = FailingDisk()
    store = FileStore(tmp_path / "objects", disk)
    disk.left, disk.error = 1, errno.EIO
    with pytest.raises(StoreUnavailable, match="packs/x"):
        store.put("packs/x", [b"1"])


def test_a_file_of_another_file_system_is_copied(tmp_path: Path) -> None:
    class OtherFileSystem(Disk):
        def rename(self, source: Path, target: Path) -> None:
            if source.parent.name == "spool":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            super().rename(source, target)

    (tmp_path / "spool").mkdir()
    path = tmp_path / "spool" / "x"
    path.write_bytes(b"x" * 3_000_000)
    store = FileStore(tmp_path / "objects", OtherFileSystem())
    store.take_file("landing/x", path)
    assert read_all(store, "landing/x") == b"x" * 3_000_000
    assert not path.exists()


def test_leftovers_of_interrupted_puts_go_when_they_are_a_day_old(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "objects")
    old, young = store.root / ".tmp" / "old", store.root / ".tmp" / "young"
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    two_days_ago = time.time() - 2 * 86400
    os.utime(old, (two_days_ago, two_days_ago))
    FileStore(tmp_path / "objects")
    assert not old.exists()
    assert young.exists()


def test_a_reader_keeps_seeing_the_whole_old_object_while_it_is_replaced(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "objects")
    store.put("a", [b"old"])

    def chunks() -> Iterator[bytes]:
        yield b"ne"
        assert read_all(store, "a") == b"old"
        yield b"w"

    store.put("a", chunks())
    assert read_all(store, "a") == b"new"


DIES_IN_PUT = """
import sys
from pathlib import Path
from deltahub.registry.storage.local import FileStore
FileStore(Path(sys.argv[1])).put("packs/x", [b"data"])
"""


@pytest.mark.parametrize(
    ("failpoint", "is_there"),
    [
        ("store.put.before_fsync", False),
        ("store.put.after_fsync", False),
        ("store.put.after_rename", True),
    ],
)
def test_a_process_killed_in_put_leaves_the_object_whole_or_absent(
    tmp_path: Path, failpoint: str, is_there: bool
) -> None:
    died = forked.run(
        "-c", DIES_IN_PUT, tmp_path / "objects", environment={"DELTAHUB_FAILPOINT": failpoint}
    )
    assert died.returncode == -9
    store: Store = FileStore(tmp_path / "objects")
    assert [info.key for info in store.list("")] == (["packs/x"] if is_there else [])
    assert not is_there or read_all(store, "packs/x") == b"data"
    store.put("packs/x", [b"again"])
    assert read_all(store, "packs/x") == b"again"


def test_keys_are_built_from_random_ids_only() -> None:
    random_id = "0123456789abcdef" * 2
    assert pack_key(random_id) == f"packs/01/{random_id}"
    assert landing_key(random_id) == f"landing/{random_id}"
    for wrong in ("", "../../etc", random_id.upper(), random_id + "0"):
        with pytest.raises(InvalidKey):
            pack_key(wrong)
        with pytest.raises(InvalidKey):
            landing_key(wrong)

"""Uploads: resumed by offset, durable before acknowledged, verified before used."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

from deltahub.registry import Caller, Registry
from deltahub.registry.access import tokens, users
from deltahub.registry.errors import (
    Forbidden,
    InvalidRequest,
    LimitExceeded,
    StorageFull,
    Unauthorized,
    Unavailable,
    UploadNotFound,
)
from deltahub.registry.storage.base import Buffer
from deltahub.registry.storage.disk import Disk
from deltahub.registry.uploads.landing import begin, receive, status
from support import forked
from support.registry.opened import caller, opened_registry, sha256_of, upload
from support.stores.durable_disk import DurableDisk
from support.stores.upload_contract import UploadContract, landed, spooled

DATA = bytes(range(256)) * 40
SHA256 = sha256_of(DATA)
SIZE = len(DATA)


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path, max_file_bytes=100_000) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


@pytest.mark.parametrize("sha256", ["", "x" * 64, SHA256.upper(), SHA256[:-1], "../" + SHA256])
def test_what_is_no_sha256_is_refused(reg: Registry, alice: Caller, sha256: str) -> None:
    with pytest.raises(InvalidRequest, match="64 lower-case hex digits"):
        receive(reg, alice, sha256, SIZE, 0, [DATA])
    with pytest.raises(InvalidRequest):
        status(reg, alice, sha256)


def test_offsets_and_sizes_that_cannot_be_are_refused(reg: Registry, alice: Caller) -> None:
    for size, offset in ((-1, 0), (SIZE, -1), (SIZE, SIZE + 1)):
        with pytest.raises(InvalidRequest):
            receive(reg, alice, SHA256, size, offset, [])
    with pytest.raises(InvalidRequest):
        receive(reg, alice, SHA256, SIZE, 10, [], length=SIZE)
    with pytest.raises(LimitExceeded, match="100001 bytes; this hub takes at most 100000"):
        begin(reg, alice, SHA256, 100_001)


def test_uploading_needs_a_token_that_may_write(reg: Registry) -> None:
    with pytest.raises(Unauthorized):
        receive(reg, None, SHA256, SIZE, 0, [DATA])
    with pytest.raises(Forbidden):
        receive(reg, caller(reg, "alice", scope="read"), SHA256, SIZE, 0, [DATA])


def test_an_upload_is_its_users_own(reg: Registry, alice: Caller) -> None:
    upload(reg, alice, DATA)
    bob = caller(reg, "bob")
    with pytest.raises(UploadNotFound) as raised:
        status(reg, bob, SHA256)
    with pytest.raises(UploadNotFound) as absent:
        status(reg, bob, "0" * 64)
    assert str(raised.value).replace(SHA256, "0" * 64) == str(absent.value)
    assert not begin(reg, bob, SHA256, SIZE).is_complete


class TestLocalSpool(UploadContract):
    @pytest.fixture
    def reg(self, tmp_path: Path) -> Iterator[Registry]:
        with opened_registry(tmp_path) as reg:
            yield reg

    @pytest.fixture
    def other(self, reg: Registry, tmp_path: Path) -> Iterator[Registry]:
        with opened_registry(tmp_path) as other:
            yield other

    @pytest.fixture
    def data(self) -> bytes:
        return DATA

    @pytest.fixture
    def cuts(self) -> st.SearchStrategy[int]:
        return st.integers(0, SIZE)


class SmallDisk(Disk):
    """A disk with room for a given number of bytes in the spool."""

    room: int | None = None

    def write(self, fd: int, data: Buffer) -> None:
        if self.room is None:
            return super().write(fd, data)
        view = memoryview(data)[: self.room]
        self.room -= view.nbytes
        super().write(fd, view)
        if view.nbytes < memoryview(data).nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_upload_as_it_was(tmp_path: Path) -> None:
    disk = SmallDisk()
    with opened_registry(tmp_path, disk) as reg:
        alice = caller(reg, "alice")
        receive(reg, alice, SHA256, SIZE, 0, [DATA[:1000]])
        disk.room = 2500
        with pytest.raises(StorageFull, match="disk is full"):
            receive(reg, alice, SHA256, SIZE, 1000, [DATA[1000:3000], DATA[3000:]])
        assert status(reg, alice, SHA256).received == 1000
        disk.room = None
        state = receive(reg, alice, SHA256, SIZE, 1000, [DATA[1000:]])
        assert landed(reg, state) == DATA


@pytest.mark.parametrize("n_parts", [1, 3])
def test_an_acknowledged_upload_survives_a_loss_of_power(tmp_path: Path, n_parts: int) -> None:
    disk = DurableDisk(tmp_path)
    with opened_registry(tmp_path, disk) as reg:
        alice = caller(reg, "alice")
        step = -(-SIZE // n_parts)
        for start in range(0, SIZE, step):
            state = receive(reg, alice, SHA256, SIZE, start, [DATA[start : start + step]])
            disk.crash()
            reg.spool.close()
            assert status(reg, alice, SHA256) == state
        assert landed(reg, state) == DATA


def test_bytes_not_acknowledged_may_be_lost_but_the_rest_goes_on(tmp_path: Path) -> None:
    disk = DurableDisk(tmp_path)
    with opened_registry(tmp_path, disk) as reg:
        alice = caller(reg, "alice")
        receive(reg, alice, SHA256, SIZE, 0, [DATA[:1000]])

        def body() -> Iterator[bytes]:
            yield DATA[1000:2000]
            disk.crash()
            raise ConnectionResetError

        with pytest.raises(Unavailable, match="power was lost"):
            receive(reg, alice, SHA256, SIZE, 1000, body())
    with opened_registry(tmp_path, disk) as reg:
        assert status(reg, alice, SHA256).received == 1000
        assert receive(reg, alice, SHA256, SIZE, 1000, [DATA[1000:]]).is_complete


DIES_IN_UPLOAD = """
import sys
from pathlib import Path
from deltahub.registry import Registry, Settings
from deltahub.registry.access.tokens import authenticate
from deltahub.registry.uploads.landing import receive
with Registry.open(Settings(data_dir=Path(sys.argv[1]))) as reg:
    alice = authenticate(reg, sys.argv[2])
    data = bytes(range(256)) * 40
    receive(reg, alice, sys.argv[3], len(data), 0, [data[:4000]])
    receive(reg, alice, sys.argv[3], len(data), 4000, [data[4000:]])
"""


@pytest.mark.parametrize(
    ("failpoint", "received", "is_complete"),
    [
        ("spool.append.before_fsync:1", 4000, False),
        ("spool.append.after_fsync:1", 4000, False),
        ("spool.append.before_fsync:2", SIZE, False),
        ("landing.complete.before_store", SIZE, False),
        ("store.take_file.before_rename", SIZE, False),
        ("store.take_file.after_rename", SIZE, True),
        ("landing.complete.after_store", SIZE, True),
        ("landing.complete.after_row", SIZE, True),
    ],
)
def test_an_upload_goes_on_after_a_kill_at_any_step(
    tmp_path: Path, failpoint: str, received: int, is_complete: bool
) -> None:
    with opened_registry(tmp_path) as reg:
        users.create_user(reg, "alice")
        secret = tokens.create_token(reg, "alice", "write")
        alice = tokens.authenticate(reg, secret)
    command = ("-c", DIES_IN_UPLOAD, tmp_path / "data", secret, SHA256)
    died = forked.run(*command, environment={"DELTAHUB_FAILPOINT": failpoint})
    assert died.returncode == -9
    with opened_registry(tmp_path) as reg:
        state = status(reg, alice, SHA256)
        assert (state.received, state.is_complete) == (received, is_complete)
        if not is_complete:
            state = receive(reg, alice, SHA256, SIZE, received, [DATA[received:]])
        assert state.is_complete
        assert landed(reg, state) == DATA
        assert spooled(reg) == []


def test_a_part_appended_to_the_file_of_a_killed_process_is_durable(tmp_path: Path) -> None:
    disk = DurableDisk(tmp_path)
    with opened_registry(tmp_path, disk) as reg:
        alice = caller(reg, "alice")
        state = begin(reg, alice, SHA256, SIZE)
        # The file was made and written by a process that was killed before its first fsync.
        fd = disk.open(reg.spool.path(state.id), os.O_CREAT | os.O_WRONLY)
        disk.write(fd, DATA[:10])
        disk.close(fd)
        receive(reg, alice, SHA256, SIZE, 10, [DATA[10:1000]])
        disk.crash()
    with opened_registry(tmp_path, disk) as reg:
        assert status(reg, alice, SHA256).received == 1000
        assert receive(reg, alice, SHA256, SIZE, 1000, [DATA[1000:]]).is_complete

"""Uploads: resumed by offset, durable before acknowledged, verified before used."""

import errno
import hashlib
import itertools
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from deltahub.registry import Caller, Registry
from deltahub.registry.access import tokens, users
from deltahub.registry.db.models import Landing, utc_now
from deltahub.registry.errors import (
    Conflict,
    Forbidden,
    HashMismatch,
    InvalidRequest,
    LimitExceeded,
    SizeMismatch,
    StorageFull,
    Unauthorized,
    Unavailable,
    UploadNotFound,
    UploadOffsetMismatch,
)
from deltahub.registry.storage.base import Buffer
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.uploads.landing import LandingStatus, begin, complete_upload, receive, status
from support import forked
from support.registry.opened import caller, opened_registry, sha256_of, upload
from support.stores.durable_disk import DurableDisk

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


def landed(reg: Registry, state: LandingStatus) -> bytes:
    out = bytearray(state.size)
    reg.store.get_into(landing_key(state.id), 0, memoryview(out))
    return bytes(out)


def spooled(reg: Registry) -> list[str]:
    return list(reg.spool.list())


def test_a_whole_upload_is_complete_and_knows_both_its_names(reg: Registry, alice: Caller) -> None:
    state = receive(reg, alice, SHA256, SIZE, 0, [DATA[:100], memoryview(DATA)[100:]])
    assert (state.received, state.size, state.is_complete) == (SIZE, SIZE, True)
    assert landed(reg, state) == DATA
    with reg.db.read() as session:
        row = complete_upload(session, alice, SHA256)
    assert row.git_blob_id == hashlib.sha1(b"blob %d\0" % SIZE + DATA).hexdigest()
    assert spooled(reg) == []


def test_an_empty_file_is_uploaded_like_any_other(reg: Registry, alice: Caller) -> None:
    state = receive(reg, alice, sha256_of(b""), 0, 0, [])
    assert state.is_complete
    assert landed(reg, state) == b""
    with reg.db.read() as session:
        row = complete_upload(session, alice, sha256_of(b""))
    assert row.git_blob_id == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=2000), cuts=st.lists(st.integers(0, 2000), max_size=4))
def test_parts_of_any_size_make_the_same_upload(
    reg: Registry, alice: Caller, data: bytes, cuts: list[int]
) -> None:
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    state = begin(reg, alice, sha256_of(data), len(data))
    for start, end in itertools.pairwise(bounds):
        reg.spool.close()  # forget the hash states, as a new process would
        state = receive(reg, alice, state.sha256, len(data), start, [data[start:end]])
    assert state.is_complete
    assert landed(reg, state) == data


def test_parts_are_acknowledged_with_the_offset_to_continue_at(
    reg: Registry, alice: Caller
) -> None:
    state = receive(reg, alice, SHA256, SIZE, 0, [DATA[:1000]])
    assert (state.received, state.is_complete) == (1000, False)
    assert status(reg, alice, SHA256) == state
    for wrong in (1, 999, 1001, SIZE):
        with pytest.raises(UploadOffsetMismatch, match="has 1000 bytes"):
            receive(reg, alice, SHA256, SIZE, wrong, [DATA[wrong:]])
    assert receive(reg, alice, SHA256, SIZE, 1000, [DATA[1000:]]).is_complete


def test_offset_zero_begins_anew(reg: Registry, alice: Caller) -> None:
    receive(reg, alice, SHA256, SIZE, 0, [b"wrong" * 100])
    assert receive(reg, alice, SHA256, SIZE, 0, [DATA]).is_complete


def test_another_process_continues_where_the_first_one_died(
    tmp_path: Path, reg: Registry, alice: Caller
) -> None:
    receive(reg, alice, SHA256, SIZE, 0, [DATA[:5000]])
    with opened_registry(tmp_path) as other:
        assert status(other, alice, SHA256).received == 5000
        assert receive(other, alice, SHA256, SIZE, 5000, [DATA[5000:]]).is_complete
    assert status(reg, alice, SHA256).is_complete


def test_a_complete_upload_needs_no_body_again(reg: Registry, alice: Caller) -> None:
    first = receive(reg, alice, SHA256, SIZE, 0, [DATA])

    def body() -> Iterator[bytes]:
        pytest.fail("nobody should read the body")
        yield b""

    assert receive(reg, alice, SHA256, SIZE, 0, body()) == first
    with pytest.raises(SizeMismatch, match=f"has {SIZE} bytes, not 5"):
        receive(reg, alice, SHA256, 5, 0, body())


def test_wrong_bytes_are_dropped_and_both_hashes_told(reg: Registry, alice: Caller) -> None:
    wrong = b"x" * SIZE
    with pytest.raises(HashMismatch) as raised:
        receive(reg, alice, SHA256, SIZE, 0, [wrong])
    assert sha256_of(wrong) in str(raised.value)
    assert SHA256 in str(raised.value)
    with pytest.raises(UploadNotFound):
        status(reg, alice, SHA256)
    assert spooled(reg) == []
    assert list(reg.store.list("")) == []
    assert receive(reg, alice, SHA256, SIZE, 0, [DATA]).is_complete


def test_a_body_longer_than_announced_changes_nothing(reg: Registry, alice: Caller) -> None:
    receive(reg, alice, SHA256, SIZE, 0, [DATA[:1000]])
    with pytest.raises(SizeMismatch, match="longer than announced"):
        receive(reg, alice, SHA256, SIZE, 1000, [DATA[1000:], b"!"])
    with pytest.raises(SizeMismatch, match="longer than announced"):
        receive(reg, alice, SHA256, SIZE, 1000, [DATA[1000:1500], DATA[1500:2001]], length=1000)
    assert status(reg, alice, SHA256).received == 1000
    assert receive(reg, alice, SHA256, SIZE, 1000, [DATA[1000:]]).is_complete


def test_what_came_of_a_shorter_body_is_kept(reg: Registry, alice: Caller) -> None:
    with pytest.raises(SizeMismatch, match="ended after 700; continue at 700"):
        receive(reg, alice, SHA256, SIZE, 0, [DATA[:700]], length=SIZE)
    assert receive(reg, alice, SHA256, SIZE, 700, [DATA[700:]], length=SIZE - 700).is_complete


def test_what_came_before_the_client_went_away_is_kept(reg: Registry, alice: Caller) -> None:
    def body() -> Iterator[bytes]:
        yield DATA[:300]
        raise ConnectionResetError("the client went away")

    with pytest.raises(ConnectionResetError):
        receive(reg, alice, SHA256, SIZE, 0, body())
    assert status(reg, alice, SHA256).received == 300
    assert receive(reg, alice, SHA256, SIZE, 300, [DATA[300:]]).is_complete


def test_a_size_announced_wrongly_is_corrected_by_beginning_anew(
    reg: Registry, alice: Caller
) -> None:
    receive(reg, alice, SHA256, SIZE + 5, 0, [DATA[:100]])
    with pytest.raises(SizeMismatch):
        receive(reg, alice, SHA256, SIZE, 100, [DATA[100:]])
    assert receive(reg, alice, SHA256, SIZE, 0, [DATA]).is_complete


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


def test_a_second_client_with_the_same_hash_is_told_to_wait_and_corrupts_nothing(
    reg: Registry, alice: Caller
) -> None:
    is_begun, may_go_on = threading.Event(), threading.Event()

    def slow_body() -> Iterator[bytes]:
        yield DATA[:1000]
        is_begun.set()
        assert may_go_on.wait(30)
        yield DATA[1000:]

    results: list[LandingStatus] = []
    first = threading.Thread(
        target=lambda: results.append(receive(reg, alice, SHA256, SIZE, 0, slow_body()))
    )
    first.start()
    assert is_begun.wait(30)
    with pytest.raises(Conflict, match="another connection"):
        receive(reg, alice, SHA256, SIZE, 0, [b"y" * SIZE])
    may_go_on.set()
    first.join()
    assert landed(reg, results[0]) == DATA
    assert receive(reg, alice, SHA256, SIZE, 0, [b"y" * SIZE]).is_complete


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


def test_an_upload_that_expired_while_it_came_in_leaves_nothing(
    reg: Registry, alice: Caller
) -> None:
    def body() -> Iterator[bytes]:
        yield DATA
        with reg.db.write() as session:
            session.delete(session.scalars(select(Landing)).one())

    with pytest.raises(UploadNotFound):
        receive(reg, alice, SHA256, SIZE, 0, body())
    assert list(reg.store.list("")) == []


def test_every_part_keeps_the_upload_for_longer(reg: Registry, alice: Caller) -> None:
    receive(reg, alice, SHA256, SIZE, 0, [DATA[:10]])
    soon = utc_now() + timedelta(seconds=5)
    with reg.db.write() as session:
        session.execute(update(Landing).values(expires_at=soon))
    receive(reg, alice, SHA256, SIZE, 10, [DATA[10:20]])
    with reg.db.read() as reading:
        assert reading.scalars(select(Landing.expires_at)).one() > soon + timedelta(hours=1)


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

"""Unfinished uploads of a hub on several machines, in a real bucket and on a real PostgreSQL."""

import itertools
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import strategies as st
from sqlalchemy import select, update

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Landing, utc_now
from deltahub.registry.db.tables.spool import SpooledPart, SpooledUpload
from deltahub.registry.errors import Conflict, HashMismatch, UploadNotFound, UploadOffsetMismatch
from deltahub.registry.maintenance import clock
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.gc.apply import apply_gc
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.maintenance.move.run import move
from deltahub.registry.spools.bucket import leases, rows, sizes
from deltahub.registry.spools.bucket.sender import MOST_RUNNING
from deltahub.registry.storage.keys import landing_key, spool_key
from deltahub.registry.uploads.discard import drop_upload
from deltahub.registry.uploads.landing import begin, receive, status
from deltahub.registry.uploads.small_files import SmallFiles
from support.registry.opened import caller, sha256_of, upload
from support.service.machines import SharedHub
from support.service.seaweedfs import S3Service
from support.stores.upload_contract import UploadContract, landed, spooled

# S3 takes no smaller part.
PART = 5 << 20
# Two parts and a bit.
LARGE = random.Random(1).randbytes(2 * PART + 1000)
SMALL = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "PART_BYTES", PART)
    monkeypatch.setattr(sizes, "RECORDED_TOGETHER", 1)


@pytest.fixture
def reg(shared: SharedHub, tmp_path: Path) -> Iterator[Registry]:
    with shared.opened(tmp_path / "one") as reg:
        yield reg


@pytest.fixture
def other(reg: Registry, shared: SharedHub, tmp_path: Path) -> Iterator[Registry]:
    with shared.opened(tmp_path / "two") as other:
        yield other


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


class TestUploadsOfSeveralParts(UploadContract):
    @pytest.fixture
    def data(self) -> bytes:
        return LARGE

    @pytest.fixture
    def cuts(self) -> st.SearchStrategy[int]:
        seams = st.sampled_from([0, PART, 2 * PART, len(LARGE)])
        return st.builds(lambda seam, by: max(seam + by, 0), seams, st.integers(-3, 3)) | (
            st.integers(0, len(LARGE))
        )


class TestUploadsOfOnePart(UploadContract):
    @pytest.fixture
    def data(self) -> bytes:
        return SMALL

    @pytest.fixture
    def cuts(self) -> st.SearchStrategy[int]:
        return st.integers(0, len(SMALL))


@pytest.mark.parametrize("size", [PART - 1, PART, PART + 1, 2 * PART])
def test_sizes_about_a_part_come_whole_and_byte_by_byte_at_the_seam(
    reg: Registry, other: Registry, alice: Caller, size: int
) -> None:
    data = LARGE[:size]
    upload(reg, alice, data)
    bob, at = caller(reg, "bob"), [0, min(PART - 1, size), min(PART, size), size]
    state = begin(reg, bob, sha256_of(data), size)
    for turn, (start, end) in enumerate(itertools.pairwise(at)):
        here = (reg, other)[turn % 2]
        if start < end:
            state = receive(here, bob, state.sha256, size, start, [data[start:end]])
    assert state.is_complete
    assert landed(reg, state) == data
    assert spooled(reg) == []


def test_a_request_that_was_killed_loses_only_what_no_transaction_recorded(
    reg: Registry, other: Registry, alice: Caller
) -> None:
    data = random.Random(2).randbytes((MOST_RUNNING + 2) * PART + 1000)
    sha256, size = sha256_of(data), len(data)
    seen: list[int] = []

    def body() -> Iterator[bytes]:
        for start in range(0, size, 1 << 20):
            yield data[start : start + (1 << 20)]
            seen.append(status(other, alice, sha256).received)

    assert receive(reg, alice, sha256, size, 0, body()).is_complete
    assert seen == sorted(seen)
    # No more than MOST_RUNNING parts are under way, so the first was recorded before the last came.
    assert any(0 < received < size for received in seen)
    assert all(received % PART == 0 for received in seen if received < size)


def test_nothing_of_an_upload_stays_on_the_machine(
    reg: Registry, alice: Caller, tmp_path: Path
) -> None:
    receive(reg, alice, sha256_of(LARGE), len(LARGE), 0, [LARGE[: PART + 10]])
    folders = [tmp_path / "one/data" / name for name in ("spool", "scratch", "objects")]
    assert [path for folder in folders for path in folder.rglob("*") if path.is_file()] == []


def lose_lease(reg: Registry) -> None:
    """As if the connection that receives had stood still for a minute."""
    with reg.db.write() as session:
        ago = utc_now() - timedelta(minutes=1)
        session.execute(update(SpooledUpload).values(receiving_until=ago))


@pytest.mark.parametrize("at", [PART // 2, PART + 10, 2 * PART + 5])
def test_a_connection_that_stood_still_changes_nothing_after_another_went_on(
    reg: Registry, other: Registry, alice: Caller, at: int
) -> None:
    sha256, size = sha256_of(LARGE), len(LARGE)

    def slow_body() -> Iterator[bytes]:
        yield b"w" * at
        lose_lease(reg)
        done = receive(other, alice, sha256, size, 0, [LARGE])
        assert done.is_complete
        yield b"w" * (size - at)

    # It finds the upload complete, and wrote none of its bytes into it.
    assert receive(reg, alice, sha256, size, 0, slow_body()).is_complete
    assert landed(reg, status(reg, alice, sha256)) == LARGE
    assert [put.key for put in reg.store.unfinished()] == []


def test_a_part_that_was_overwritten_late_is_never_in_the_upload(
    reg: Registry, other: Registry, alice: Caller, tmp_path: Path
) -> None:
    sha256, size = sha256_of(LARGE), len(LARGE)
    receive(reg, alice, sha256, size, 0, [LARGE[: PART + 10]])
    late = tmp_path / "late"
    late.write_bytes(b"w" * PART)
    with reg.db.read() as session:
        row = session.scalars(select(SpooledUpload)).one()
    parts = reg.store.parts()
    assert parts is not None
    assert row.multipart_id is not None
    with late.open("rb") as file:
        parts.send(landing_key(row.landing_id), row.multipart_id, 1, file.fileno(), PART)
    try:
        state = receive(other, alice, sha256, size, PART + 10, [LARGE[PART + 10 :]])
    except UploadOffsetMismatch:
        assert status(reg, alice, sha256).received == 0
        state = receive(reg, alice, sha256, size, 0, [LARGE])
    assert landed(reg, state) == LARGE


def test_an_upload_whose_parts_the_bucket_lost_begins_again(
    reg: Registry, other: Registry, alice: Caller
) -> None:
    sha256, size, at = sha256_of(LARGE), len(LARGE), 2 * PART
    for end in (at, size):
        receive(reg, alice, sha256, size, 0, [LARGE[:at]])
        with reg.db.read() as session:
            row = session.scalars(select(SpooledUpload)).one()
        parts = reg.store.parts()
        assert parts is not None
        assert row.multipart_id is not None
        parts.abort(landing_key(row.landing_id), row.multipart_id)
        with pytest.raises(UploadOffsetMismatch, match="from byte 0"):
            receive(other, alice, sha256, size, at, [LARGE[at:end]] * (end > at) or [LARGE[at:]])
        assert status(reg, alice, sha256).received == 0
    assert receive(other, alice, sha256, size, 0, [LARGE]).is_complete
    assert spooled(reg) == []


@pytest.mark.parametrize("data", [LARGE, SMALL])
def test_an_upload_whose_end_the_bucket_lost_or_damaged_begins_again(
    reg: Registry, other: Registry, alice: Caller, data: bytes
) -> None:
    sha256, size, at = sha256_of(data), len(data), len(data) * 7 // 10
    for is_damaged in (False, True):
        receive(reg, alice, sha256, size, 0, [data[:at]])
        [tail] = [info for info in reg.store.list("spool/")]
        if is_damaged:
            reg.store.put(tail.key, [b"w" * tail.size])
        else:
            reg.store.delete(tail.key)
        with pytest.raises(UploadOffsetMismatch):
            receive(other, alice, sha256, size, at, [data[at:]])
        assert status(reg, alice, sha256).received == 0
    state = receive(other, alice, sha256, size, 0, [data])
    assert landed(reg, state) == data


def test_a_dropped_upload_leaves_nothing(reg: Registry, other: Registry, alice: Caller) -> None:
    sha256, size = sha256_of(LARGE), len(LARGE)

    def body() -> Iterator[bytes]:
        yield LARGE[:PART]
        with pytest.raises(Conflict):
            drop_upload(other, alice, sha256)
        yield LARGE[PART : PART + 10]

    receive(reg, alice, sha256, size, 0, body())
    drop_upload(other, alice, sha256)
    assert spooled(reg) == []
    with pytest.raises(UploadNotFound):
        status(reg, alice, sha256)


def test_a_lease_is_renewed_while_a_slow_client_sends(
    reg: Registry, other: Registry, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "LEASE", timedelta(seconds=1))
    monkeypatch.setattr(leases, "RENEW_S", 0.2)
    sha256, size = sha256_of(SMALL), len(SMALL)

    def body() -> Iterator[bytes]:
        yield SMALL[:100]
        for _ in range(8):
            with pytest.raises(Conflict):
                receive(other, alice, sha256, size, 0, [SMALL])
            leases.threading.Event().wait(0.25)
        yield SMALL[100:]

    assert receive(reg, alice, sha256, size, 0, body()).is_complete


def test_a_lease_of_a_clock_that_was_ahead_keeps_nobody_out(reg: Registry, alice: Caller) -> None:
    sha256, size = sha256_of(SMALL), len(SMALL)
    receive(reg, alice, sha256, size, 0, [SMALL[:100]])
    with reg.db.write() as session:
        later = utc_now() + timedelta(days=400)
        session.execute(update(SpooledUpload).values(receiving_until=later))
    assert clock.count_ahead(reg) == 1
    assert receive(reg, alice, sha256, size, 100, [SMALL[100:]]).is_complete


def test_small_files_take_an_upload_over(reg: Registry, other: Registry, alice: Caller) -> None:
    sha256, size = sha256_of(SMALL), len(SMALL)

    def body() -> Iterator[bytes]:
        yield b"w" * 100
        small = SmallFiles(other, alice)
        small.add(SMALL)
        small.flush()
        yield b"w" * (size - 100)

    receive(reg, alice, sha256, size, 0, [SMALL[:50]])
    with pytest.raises(HashMismatch):
        receive(reg, alice, sha256, size, 0, body())
    assert landed(reg, status(other, alice, sha256)) == SMALL
    assert spooled(reg) == []


def damage(reg: Registry, landing_id: str, data: bytes) -> None:
    with reg.db.write() as session:
        session.get_one(Landing, landing_id).state = "damaged"
    reg.store.put(landing_key(landing_id), [data])


def test_a_damaged_upload_is_replaced_by_verified_bytes_alone(
    reg: Registry, other: Registry, alice: Caller
) -> None:
    sha256, size, half = sha256_of(LARGE), len(LARGE), len(LARGE) // 2
    state = receive(reg, alice, sha256, size, 0, [LARGE])
    broken = b"w" + LARGE[1:]
    damage(reg, state.id, broken)
    receive(reg, alice, sha256, size, 0, [LARGE[:half]])
    with pytest.raises(HashMismatch):
        receive(other, alice, sha256, size, half, [b"x" * (size - half)])
    assert landed(reg, state) == broken
    receive(reg, alice, sha256, size, 0, [LARGE[:half]])
    assert receive(other, alice, sha256, size, half, [LARGE[half:]]).is_complete
    assert landed(reg, state) == LARGE
    assert spooled(reg) == []


def old(reg: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let gc take all leftovers for old enough."""
    monkeypatch.setattr("deltahub.registry.maintenance.gc.plan.LEFTOVER_AGE", timedelta(days=-1))
    monkeypatch.setattr(
        "deltahub.registry.maintenance.gc.leftovers.LEFTOVER_AGE", timedelta(days=-1)
    )


def test_gc_leaves_an_unfinished_upload_alone_until_it_expires(
    reg: Registry, other: Registry, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256, size, at = sha256_of(LARGE), len(LARGE), PART + 10
    receive(reg, alice, sha256, size, 0, [LARGE[:at]])
    stray = spool_key("ab" * 16)
    reg.store.put(stray, [b"the end of an upload whose request was killed"])
    assert plan_gc(reg, lease_s=0).tails == ()
    old(reg, monkeypatch)
    plan = plan_gc(other, lease_s=0, is_full=True)
    assert (plan.doubts, plan.unfinished, plan.unknown) == ((), (), ())
    assert [item.id for item in plan.tails] == [stray]
    assert apply_gc(other, plan).tails == 1
    assert list(fsck(reg)) == []
    assert clock.count_ahead(reg) == 0
    assert receive(other, alice, sha256, size, at, [LARGE[at : at + 10]]).received == at + 10
    with reg.db.write() as session:
        session.execute(update(Landing).values(expires_at=utc_now() - timedelta(days=1)))
    assert len(plan_gc(reg, lease_s=0).uploads) == 1
    apply_gc(reg, plan_gc(reg, lease_s=0))
    assert spooled(reg) == []
    with reg.db.read() as session:
        assert session.scalars(select(SpooledPart.landing_id)).all() == []


def test_a_put_whose_upload_has_gone_is_ended(
    reg: Registry, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(reg, alice, sha256_of(LARGE), len(LARGE), 0, [LARGE[: PART + 10]])
    with reg.db.write() as session:
        session.delete(session.scalars(select(Landing)).one())
    old(reg, monkeypatch)
    plan = plan_gc(reg, lease_s=0)
    assert (len(plan.unfinished), len(plan.tails)) == (1, 1)
    apply_gc(reg, plan)
    assert spooled(reg) == []


def test_a_disk_that_is_smaller_than_an_upload_is_enough(
    reg: Registry, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reg.disk, "free_bytes", lambda _: 300 << 20)
    begin(reg, alice, "a" * 64, 1 << 39)


@pytest.mark.parametrize("to", ["", "another bucket"])
def test_an_upload_begins_again_when_the_hub_moves(
    reg: Registry, alice: Caller, service: S3Service, to: str
) -> None:
    sha256, size, at = sha256_of(LARGE), len(LARGE), PART + 10
    receive(reg, alice, sha256, size, 0, [LARGE[:at]])

    def body() -> Iterator[bytes]:
        yield LARGE[at : at + 10]
        assert move(reg, to and service.store_url()).is_done
        yield LARGE[at + 10 :]

    with pytest.raises(UploadOffsetMismatch):
        receive(reg, alice, sha256, size, at, body())
    assert status(reg, alice, sha256).received == 0
    assert receive(reg, alice, sha256, size, 0, [LARGE[:at]]).received == at
    state = receive(reg, alice, sha256, size, at, [LARGE[at:]])
    assert landed(reg, state) == LARGE
    assert spooled(reg) == []
    assert list(fsck(reg, read_data=True)) == []

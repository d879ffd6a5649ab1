"""What every spool promises of uploads: resumed by offset, verified before they can be used."""

import hashlib
import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Landing, utc_now
from deltahub.registry.errors import (
    Conflict,
    HashMismatch,
    SizeMismatch,
    UploadNotFound,
    UploadOffsetMismatch,
)
from deltahub.registry.names import LFS_BYTES
from deltahub.registry.spools.base import UnfinishedUpload
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.uploads.discard import drop_upload
from deltahub.registry.uploads.landing import LandingStatus, begin, complete_upload, receive, status
from support.registry.opened import caller, sha256_of

# The examples share a hub, and the subclasses these tests.
_SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]


def landed(reg: Registry, state: LandingStatus) -> bytes:
    out = bytearray(state.size)
    reg.store.get_into(landing_key(state.id), 0, memoryview(out))
    return bytes(out)


def spooled(reg: Registry) -> list[str]:
    """Whatever is left of unfinished uploads, on this machine or in the store."""
    files = [path.name for path in reg.spool_folder.iterdir()]
    objects = [info.key for info in reg.store.list("spool/")]
    return files + objects + [put.id for put in reg.store.unfinished()]


class UploadContract:
    """Subclasses give the fixtures `reg`, a hub; `other`, the same hub in another process; `data`,
    what is uploaded; and `cuts`, places in it at which parts may end.
    """

    @pytest.fixture
    def alice(self, reg: Registry) -> Caller:
        return caller(reg, "alice")

    def test_a_whole_upload_is_complete_and_knows_both_its_names(
        self, reg: Registry, alice: Caller, data: bytes
    ) -> None:
        size = len(data)
        state = receive(reg, alice, sha256_of(data), size, 0, [data[:100], memoryview(data)[100:]])
        assert (state.received, state.size, state.is_complete) == (size, size, True)
        assert landed(reg, state) == data
        with reg.db.read() as session:
            row = complete_upload(session, alice, state.sha256)
        blob = hashlib.sha1(b"blob %d\0" % size + data).hexdigest()
        assert row.git_blob_id == (blob if size < LFS_BYTES else None)
        assert spooled(reg) == []

    def test_an_empty_file_is_uploaded_like_any_other(self, reg: Registry, alice: Caller) -> None:
        state = receive(reg, alice, sha256_of(b""), 0, 0, [])
        assert state.is_complete
        assert landed(reg, state) == b""
        with reg.db.read() as session:
            row = complete_upload(session, alice, sha256_of(b""))
        assert row.git_blob_id == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"

    @settings(
        max_examples=15,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        ],
    )
    @given(draw=st.data())
    def test_processes_that_take_turns_make_the_same_upload(
        self,
        reg: Registry,
        other: Registry,
        alice: Caller,
        data: bytes,
        cuts: st.SearchStrategy[int],
        draw: st.DataObject,
    ) -> None:
        data = draw.draw(st.binary(max_size=40)) + data
        places = draw.draw(st.lists(cuts, max_size=4))
        bounds = [0, *sorted(min(place, len(data)) for place in places), len(data)]
        state = begin(reg, alice, sha256_of(data), len(data))
        for start, end in itertools.pairwise(bounds):
            here, there = draw.draw(st.permutations([reg, other]))
            state = receive(here, alice, state.sha256, len(data), start, [data[start:end]])
            assert status(there, alice, state.sha256) == state
        assert state.is_complete
        assert landed(other, state) == data
        assert spooled(reg) == []

    def test_parts_are_acknowledged_with_the_offset_to_continue_at(
        self, reg: Registry, alice: Caller, data: bytes
    ) -> None:
        sha256, size, some = sha256_of(data), len(data), len(data) // 10
        state = receive(reg, alice, sha256, size, 0, [data[:some]])
        assert (state.received, state.is_complete) == (some, False)
        assert status(reg, alice, sha256) == state
        for wrong in (1, some - 1, some + 1, size):
            with pytest.raises(UploadOffsetMismatch, match=f"has {some} bytes"):
                receive(reg, alice, sha256, size, wrong, [data[wrong:]])
        assert receive(reg, alice, sha256, size, some, [data[some:]]).is_complete

    def test_offset_zero_begins_anew(self, reg: Registry, alice: Caller, data: bytes) -> None:
        sha256, size = sha256_of(data), len(data)
        for n_wrong in (size // 20, size * 4 // 5):
            receive(reg, alice, sha256, size, 0, [b"w" * n_wrong])
        state = receive(reg, alice, sha256, size, 0, [data])
        assert state.is_complete
        assert landed(reg, state) == data
        assert spooled(reg) == []

    def test_what_another_process_has_put_in_place_is_what_is_hashed(
        self, reg: Registry, other: Registry, alice: Caller, data: bytes
    ) -> None:
        sha256, size, some = sha256_of(data), len(data), len(data) * 6 // 10
        receive(reg, alice, sha256, size, 0, [data[:some]])
        receive(other, alice, sha256, size, 0, [b"w" * some])
        with pytest.raises(HashMismatch):
            receive(reg, alice, sha256, size, some, [data[some:]])

    def test_a_complete_upload_needs_no_body_again(
        self, reg: Registry, other: Registry, alice: Caller, data: bytes
    ) -> None:
        first = receive(reg, alice, sha256_of(data), len(data), 0, [data])

        def body() -> Iterator[bytes]:
            pytest.fail("nobody should read the body")
            yield b""

        assert receive(other, alice, first.sha256, len(data), 0, body()) == first
        with pytest.raises(SizeMismatch, match=f"has {len(data)} bytes, not 5"):
            receive(reg, alice, first.sha256, 5, 0, body())

    def test_wrong_bytes_are_dropped_and_both_hashes_told(
        self, reg: Registry, other: Registry, alice: Caller, data: bytes
    ) -> None:
        sha256, wrong, half = sha256_of(data), b"x" * len(data), len(data) // 2
        for first, second in ((reg, reg), (reg, other)):
            receive(first, alice, sha256, len(data), 0, [wrong[:half]])
            with pytest.raises(HashMismatch) as raised:
                receive(second, alice, sha256, len(data), half, [wrong[half:]])
            assert sha256_of(wrong) in str(raised.value)
            assert sha256 in str(raised.value)
            with pytest.raises(UploadNotFound):
                status(reg, alice, sha256)
            assert spooled(reg) == []
            assert list(reg.store.list("")) == []
        assert receive(reg, alice, sha256, len(data), 0, [data]).is_complete

    def test_a_body_longer_than_announced_changes_nothing(
        self, reg: Registry, alice: Caller, data: bytes
    ) -> None:
        sha256, size, some = sha256_of(data), len(data), len(data) // 10
        receive(reg, alice, sha256, size, 0, [data[:some]])
        with pytest.raises(SizeMismatch, match="longer than announced"):
            receive(reg, alice, sha256, size, some, [data[some:], b"!"])
        half, end = size // 2, size * 9 // 10
        body = [data[some:half], data[half:end], data[end : end + 1]]
        with pytest.raises(SizeMismatch, match="longer than announced"):
            receive(reg, alice, sha256, size, some, body, length=end - some)
        assert status(reg, alice, sha256).received == some
        state = receive(reg, alice, sha256, size, some, [data[some:]])
        assert landed(reg, state) == data
        assert spooled(reg) == []

    def test_what_came_of_a_shorter_body_is_kept(
        self, reg: Registry, other: Registry, alice: Caller, data: bytes
    ) -> None:
        sha256, size, some = sha256_of(data), len(data), len(data) * 7 // 10
        with pytest.raises(SizeMismatch, match=f"ended after {some}; continue at {some}"):
            receive(reg, alice, sha256, size, 0, [data[:some]], length=size)
        rest = [data[some:]]
        assert receive(other, alice, sha256, size, some, rest, length=size - some).is_complete

    @pytest.mark.parametrize("tenths", [3, 10])
    def test_what_came_before_the_client_went_away_is_kept(
        self, reg: Registry, other: Registry, alice: Caller, data: bytes, tenths: int
    ) -> None:
        sha256, size, some = sha256_of(data), len(data), len(data) * tenths // 10

        def body() -> Iterator[bytes]:
            yield data[:some]
            raise ConnectionResetError("the client went away")

        with pytest.raises(ConnectionResetError):
            receive(reg, alice, sha256, size, 0, body())
        assert status(other, alice, sha256).received == some
        state = receive(other, alice, sha256, size, some, [data[some:]])
        assert landed(reg, state) == data

    def test_a_size_announced_wrongly_is_corrected_by_beginning_anew(
        self, reg: Registry, alice: Caller, data: bytes
    ) -> None:
        sha256, size, some = sha256_of(data), len(data), len(data) // 10
        receive(reg, alice, sha256, size + 5, 0, [data[:some]])
        with pytest.raises(SizeMismatch):
            receive(reg, alice, sha256, size, some, [data[some:]])
        assert receive(reg, alice, sha256, size, 0, [data]).is_complete

    def test_a_second_client_with_the_same_hash_is_told_to_wait_and_corrupts_nothing(
        self, reg: Registry, other: Registry, alice: Caller, data: bytes
    ) -> None:
        sha256, size, some = sha256_of(data), len(data), len(data) // 10
        is_begun, may_go_on = threading.Event(), threading.Event()

        def slow_body() -> Iterator[bytes]:
            yield data[:some]
            is_begun.set()
            assert may_go_on.wait(30)
            yield data[some:]

        results: list[LandingStatus] = []
        first = threading.Thread(
            target=lambda: results.append(receive(reg, alice, sha256, size, 0, slow_body()))
        )
        first.start()
        assert is_begun.wait(30)
        for each in (reg, other):
            with pytest.raises(Conflict, match="another connection"):
                receive(each, alice, sha256, size, 0, [b"y" * size])
        may_go_on.set()
        first.join()
        assert landed(reg, results[0]) == data
        assert receive(other, alice, sha256, size, 0, [b"y" * size]).is_complete

    def test_an_upload_that_expired_while_it_came_in_leaves_nothing(
        self, reg: Registry, alice: Caller, data: bytes
    ) -> None:
        def body() -> Iterator[bytes]:
            yield data
            with reg.db.write() as session:
                session.delete(session.scalars(select(Landing)).one())

        with pytest.raises(UploadNotFound):
            receive(reg, alice, sha256_of(data), len(data), 0, body())
        assert list(reg.store.list("")) == []

    def test_an_upload_that_was_dropped_and_has_begun_again_is_another_one(
        self, reg: Registry, other: Registry, alice: Caller, data: bytes
    ) -> None:
        sha256, size = sha256_of(data), len(data)
        opened = reg.spool.open

        def open_late(upload_id: str, total: int) -> AbstractContextManager[UnfinishedUpload]:
            reg.spool.open = opened  # type: ignore[method-assign]
            drop_upload(other, alice, sha256)
            receive(other, alice, sha256, size, 0, [data[:10]])
            return opened(upload_id, total)

        reg.spool.open = open_late  # type: ignore[method-assign]
        with pytest.raises(Conflict):
            receive(reg, alice, sha256, size, 0, [data])
        assert status(reg, alice, sha256).received == 10
        state = receive(reg, alice, sha256, size, 10, [data[10:]])
        assert landed(other, state) == data
        assert spooled(reg) == []

    def test_every_part_keeps_the_upload_for_longer(
        self, reg: Registry, alice: Caller, data: bytes
    ) -> None:
        sha256, size = sha256_of(data), len(data)
        receive(reg, alice, sha256, size, 0, [data[:10]])
        soon = utc_now() + timedelta(seconds=5)
        with reg.db.write() as session:
            session.execute(update(Landing).values(expires_at=soon))
        receive(reg, alice, sha256, size, 10, [data[10:20]])
        with reg.db.read() as reading:
            assert reading.scalars(select(Landing.expires_at)).one() > soon + timedelta(hours=1)

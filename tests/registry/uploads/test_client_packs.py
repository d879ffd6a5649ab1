"""Frames from clients: which tensors may be claimed, and that every byte is verified."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, func, select

from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames import BasePlan, BaseSegment, FrameRange, TensorSpec, encode_frame
from deltahub.codecs.ids import tensor_id
from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Hold, Landing, Tensor
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import (
    Forbidden,
    InvalidFrame,
    LimitExceeded,
    RepositoryNotFound,
    UploadNotFound,
)
from deltahub.registry.uploads.client_packs import accept_pack
from deltahub.registry.uploads.known_tensors import query_and_hold
from support.codecs.frames import forge_header, forge_segments, table_of
from support.registry.client_packs import frames_of, near, pack_of, send_pack, weights
from support.registry.ingested import push_ingested
from support.registry.opened import caller, ensure_repository, opened_registry, sha256_of, upload

BASE = weights(40_000)
TUNED = near(BASE)


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def have(reg: Registry, who: Caller, name: str, *tensors: bytes) -> list[bool]:
    said = query_and_hold(reg, who, name, [(tensor_id(data), len(data)) for data in tensors])
    return [tensor_id(data) in said for data in tensors]


def stored_bytes(reg: Registry, data: bytes) -> bytes:
    with reg.db.read() as session:
        rows = session.scalars(select(Tensor).where(Tensor.hash == tensor_id(data))).all()
    out = bytearray(len(data))
    for row in rows:
        FileReader(reg).read_tensor_into(row.id, 0, memoryview(out))
    return bytes(out) if rows else b""


def count(reg: Registry, model: type) -> int:
    with reg.db.read() as session:
        return session.scalar(select(func.count()).select_from(model)) or 0


class TestQuery:
    def test_the_hub_has_what_a_readable_file_holds(self, reg: Registry, ann: Caller) -> None:
        push_ingested(reg, ann, "ann/base", {"a.bin": BASE})
        ensure_repository(reg, ann, "ann/new")
        assert have(reg, ann, "ann/new", BASE, TUNED) == [True, False]
        assert query_and_hold(reg, ann, "ann/new", [(tensor_id(BASE), len(BASE) - 1)]) == []

    def test_a_private_tensor_of_somebody_else_is_absent(self, reg: Registry, ann: Caller) -> None:
        bob = caller(reg, "bob")
        push_ingested(reg, ann, "ann/secret", {"a.bin": BASE}, private=True)
        for name, is_private in (("bob/mine", True), ("bob/open", False)):
            ensure_repository(reg, bob, name, private=is_private)
            assert have(reg, bob, name, BASE) == [False]

    def test_ones_own_private_tensor_is_absent_for_a_public_repository(
        self, reg: Registry, ann: Caller
    ) -> None:
        push_ingested(reg, ann, "ann/secret", {"a.bin": BASE}, private=True)
        ensure_repository(reg, ann, "ann/open")
        ensure_repository(reg, ann, "ann/other", private=True)
        assert have(reg, ann, "ann/open", BASE) == [False]
        assert have(reg, ann, "ann/other", BASE) == [True]

    def test_a_public_tensor_serves_a_private_repository(self, reg: Registry, ann: Caller) -> None:
        bob = caller(reg, "bob")
        push_ingested(reg, ann, "ann/base", {"a.bin": BASE})
        ensure_repository(reg, bob, "bob/mine", private=True)
        assert have(reg, bob, "bob/mine", BASE) == [True]

    def test_what_is_said_to_be_there_is_held(self, reg: Registry, ann: Caller) -> None:
        push_ingested(reg, ann, "ann/base", {"a.bin": BASE})
        for _ in range(2):
            have(reg, ann, "ann/base", BASE)
            assert count(reg, Hold) == 1

    def test_only_writers_may_ask(self, reg: Registry, ann: Caller) -> None:
        bob = caller(reg, "bob")
        push_ingested(reg, ann, "ann/base", {"a.bin": BASE})
        push_ingested(reg, ann, "ann/secret", {"a.bin": BASE}, private=True)
        with pytest.raises(Forbidden):
            have(reg, bob, "ann/base", BASE)
        with pytest.raises(RepositoryNotFound):
            have(reg, bob, "ann/secret", BASE)
        with pytest.raises(Forbidden):
            have(reg, caller(reg, "ann", scope="read"), "ann/base", BASE)

    def test_a_query_is_limited(self, tmp_path: Path) -> None:
        with opened_registry(tmp_path, max_query_tensors=1) as reg:
            ann = caller(reg, "ann")
            ensure_repository(reg, ann, "ann/m")
            with pytest.raises(LimitExceeded, match="at most 1"):
                have(reg, ann, "ann/m", BASE, TUNED)


@pytest.mark.parametrize("private", [True, False])
class TestAccept:
    @pytest.fixture(autouse=True)
    def _base(self, reg: Registry, ann: Caller, private: bool) -> None:
        push_ingested(reg, ann, "ann/base", {"a.bin": BASE})
        ensure_repository(reg, ann, "ann/m", private=private)

    def test_a_delta_of_a_readable_base_is_taken(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        other = weights(700, seed=5)
        accepted = send_pack(reg, ann, "ann/m", frames_of(TUNED, BASE) + frames_of(other))
        assert (accepted.n_tensors, accepted.n_waiting) == (2, 0)
        assert [stored_bytes(reg, data) for data in (TUNED, other)] == [TUNED, other]
        assert have(reg, ann, "ann/m", TUNED, other) == [True, True]
        assert count(reg, Landing) == 0
        assert not list(reg.store.list("landing/"))
        with reg.db.read() as session:
            row = session.scalars(select(Tensor).where(Tensor.hash == tensor_id(TUNED))).one()
        assert row.depth == 1
        assert row.is_foreign == private

    def test_a_pack_may_be_sent_twice(self, reg: Registry, ann: Caller, private: bool) -> None:
        for _ in range(2):
            send_pack(reg, ann, "ann/m", frames_of(TUNED, BASE))
        assert stored_bytes(reg, TUNED) == TUNED
        with pytest.raises(UploadNotFound):
            accept_pack(
                reg, FileReader(reg), ann, "ann/m", sha256_of(pack_of(frames_of(TUNED, BASE)))
            )

    def test_a_tensor_is_not_another_users_before_it_is_in_a_file(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        bob = caller(reg, "bob")
        ensure_repository(reg, bob, "bob/m", private=private)
        send_pack(reg, ann, "ann/m", frames_of(TUNED, BASE))
        assert have(reg, bob, "bob/m", TUNED) == [False]
        # Another user who has the bytes may send them, too.
        send_pack(reg, bob, "bob/m", frames_of(TUNED))
        assert have(reg, bob, "bob/m", TUNED) == [True]
        assert stored_bytes(reg, TUNED) == TUNED

    def test_frames_of_a_tensor_may_come_in_several_packs_in_any_order(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        large = weights(2 << 20)
        frames = frames_of(large, max_bytes=1 << 20)
        stale = frames_of(large, max_bytes=3 << 19)
        assert send_pack(reg, ann, "ann/m", stale[:1]).n_waiting == 1
        small = frames_of(TUNED, BASE)
        first = send_pack(reg, ann, "ann/m", frames[:1] + small)
        assert (first.n_tensors, first.n_waiting) == (1, 1)
        assert have(reg, ann, "ann/m", large, TUNED) == [False, True]
        assert send_pack(reg, ann, "ann/m", frames[2:]).n_waiting == 1
        last = send_pack(reg, ann, "ann/m", frames[1:2])
        assert (last.n_tensors, last.n_waiting) == (1, 0)
        assert stored_bytes(reg, large) == large
        assert have(reg, ann, "ann/m", large) == [True]
        assert count(reg, Landing) == 0

    def test_another_users_frames_do_not_complete_a_tensor(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        bob = caller(reg, "bob")
        ensure_repository(reg, bob, "bob/m", private=private)
        frames = frames_of(weights(1 << 20), max_bytes=1 << 20)
        send_pack(reg, ann, "ann/m", frames[:1])
        assert send_pack(reg, bob, "bob/m", frames[1:]).n_waiting == 1

    def test_a_base_that_the_caller_may_not_read_is_refused_like_an_absent_one(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        bob = caller(reg, "bob")
        secret, absent = weights(40_000, seed=7), weights(40_000, seed=8)
        push_ingested(reg, bob, "bob/secret", {"a.bin": secret}, private=True)
        # The classic theft: a frame of unchanged blocks only, which would decode to the base.
        said = []
        for base in (secret, absent):
            unchanged = forge_base(unchanged_frame(), base)
            stolen = forge_header(unchanged, tensor=tensor_id(b"its id is known"))
            with pytest.raises(InvalidFrame) as refused:
                send_pack(reg, ann, "ann/m", [stolen])
            said.append(str(refused.value).replace(tensor_id(base).hex(), "<base>"))
        assert said[0] == said[1]
        assert have(reg, ann, "ann/m", secret) == [False]

    def test_naming_the_base_as_ones_own_tensor_gives_nothing(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        bob = caller(reg, "bob")
        secret = weights(40_000, seed=7)
        push_ingested(reg, bob, "bob/secret", {"a.bin": secret}, private=True)
        frame = forge_header(frames_of(TUNED, BASE)[0], tensor=tensor_id(secret))
        with pytest.raises(InvalidFrame, match="another tensor"):
            send_pack(reg, ann, "ann/m", [frame])
        assert have(reg, ann, "ann/m", secret) == [False]

    def test_frames_against_the_wrong_base_are_refused(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        wrong = weights(40_000, seed=9)
        push_ingested(reg, ann, "ann/wrong", {"a.bin": wrong})
        with pytest.raises(InvalidFrame):
            send_pack(reg, ann, "ann/m", [forge_base(frames_of(TUNED, BASE)[0], wrong)])
        assert stored_bytes(reg, TUNED) == b""

    def test_a_base_segment_beyond_its_tensor_is_refused(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        n = len(BASE) // 2
        segment = BaseSegment(tensor_id(BASE), DType.BF16, 1, n)
        spec, part = TensorSpec(tensor_id(TUNED), DType.BF16, 1, n), FrameRange(0, n, 1, n)
        plan = BasePlan((segment,), is_cast=False)
        frame = encode_frame(spec, part, TUNED, BASE, plan, "fm_delta")
        with pytest.raises(InvalidFrame, match="beyond its tensor"):
            send_pack(reg, ann, "ann/m", [frame])

    def test_a_damaged_frame_is_refused_and_nothing_of_its_pack_is_kept(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        good = weights(900, seed=4)
        frame = bytearray(frames_of(TUNED, BASE)[0])
        frame[-20] ^= 1
        with pytest.raises(InvalidFrame):
            send_pack(reg, ann, "ann/m", [*frames_of(good), bytes(frame)])
        assert have(reg, ann, "ann/m", good, TUNED) == [False, False]

    def test_an_upload_that_is_no_pack_is_refused(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        whole = pack_of(frames_of(TUNED, BASE))
        for data in (b"nonsense", b"", b"x" * 5000, whole[:-1], whole[:500] + whole[501:]):
            with pytest.raises(InvalidFrame):
                accept_pack(reg, FileReader(reg), ann, "ann/m", upload(reg, ann, data))

    def test_a_pack_may_not_decode_to_more_than_the_limit(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        bomb = bytes(64 << 20)
        settings = reg.settings.model_copy(update={"max_decoded_bytes": 100 << 20})
        reg.settings = settings
        with pytest.raises(LimitExceeded, match="decodes to"):
            send_pack(reg, ann, "ann/m", frames_of(bomb) + frames_of(bomb[:-2]))

    def test_unreasonably_small_frames_are_refused(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        with pytest.raises(InvalidFrame, match="too many"):
            send_pack(reg, ann, "ann/m", frames_of(TUNED, max_bytes=1000))


def unchanged_frame() -> bytes:
    """A frame in which every block is marked as equal to the base."""
    n = len(BASE) // 2
    spec, part = TensorSpec(tensor_id(TUNED), DType.BF16, 1, n), FrameRange(0, n, 1, n)
    plan = BasePlan((BaseSegment(tensor_id(BASE), DType.BF16, 0, n),), is_cast=False)
    frame = encode_frame(spec, part, BASE, BASE, plan, "fm_delta")
    assert all(mode == 0 for _, mode, _ in table_of(frame))
    return frame


def forge_base(frame: bytes, base: bytes) -> bytes:
    """The frame with another base in its header."""
    segment = forge_segments((tensor_id(base), DType.BF16.code, 0, len(base) // 2))
    return forge_header(frame, segments=segment)


def test_a_pack_of_very_many_frames_holds_the_lock_for_a_few_of_them_at_a_time(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltahub.registry.packs.switch.PART_TENSORS", 10)
    monkeypatch.setattr("deltahub.registry.uploads.client_packs.PART_TENSORS", 10)
    monkeypatch.setattr("deltahub.registry.uploads.known_tensors.PART_TENSORS", 10)
    tensors = [weights(8, seed) for seed in range(25)]
    ensure_repository(reg, ann, "ann/m", private=True)
    rows = [0]

    def count_rows(connection: Connection, *args: object) -> None:
        """Number of tensors at the end of each write transaction."""
        rows.append(connection.execute(select(func.count()).select_from(Tensor)).scalar_one())

    event.listen(reg.db.write_engine, "commit", count_rows)
    accepted = send_pack(reg, ann, "ann/m", [f for data in tensors for f in frames_of(data)])
    event.remove(reg.db.write_engine, "commit", count_rows)
    assert accepted.n_tensors == 25
    assert sorted(set(rows)) == [0, 10, 20, 25]
    assert have(reg, ann, "ann/m", *tensors) == [True] * 25
    # Sent again, the tensor is known and stays as it is.
    again = send_pack(reg, ann, "ann/m", [f for data in tensors for f in frames_of(data)])
    assert again.n_tensors == 25
    assert [stored_bytes(reg, data) for data in tensors] == tensors

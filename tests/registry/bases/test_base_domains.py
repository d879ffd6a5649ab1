"""Equal bytes stored privately and publicly: a delta is decoded from the base row that it names.

Cycles and depths are checked on the rows of tensor_bases, so decoding must follow these rows.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select

from deltahub.codecs.ids import tensor_id
from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import FileTensor, Frame, Hold, Tensor, TensorBase
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost, InvalidFrame
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.packs.copy import repack
from deltahub.registry.packs.switch import make_live, switch_tensor
from deltahub.registry.packs.writer import PackSpool
from deltahub.registry.storage.keys import pack_key
from deltahub.registry.uploads.client_pack_index import UploadedFrame
from deltahub.registry.uploads.verify_frames import FrameVerifier
from support.models import tiny_models as tiny
from support.registry.client_packs import frames_of, near, send_pack, weights
from support.registry.collecting import age_everything, collect, is_clean
from support.registry.ingested import push_ingested, read_file, stored_tensors
from support.registry.opened import caller, ensure_repository, opened_registry

BASE = weights(40_000)
TUNED = near(BASE)


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def bob(reg: Registry) -> Caller:
    return caller(reg, "bob")


@pytest.fixture
def tuned(reg: Registry, bob: Caller) -> Tensor:
    """A private delta of a public base whose repository has been deleted since."""
    ann = caller(reg, "ann")
    push_ingested(reg, ann, "ann/base", {"a.bin": BASE})
    ensure_repository(reg, bob, "bob/m", private=True)
    send_pack(reg, bob, "bob/m", frames_of(TUNED, BASE))
    delete_repository(reg, ann, "ann/base")
    return rows_of(reg, TUNED)[0]


def rows_of(reg: Registry, data: bytes) -> list[Tensor]:
    with reg.db.read() as session:
        query = select(Tensor).where(Tensor.hash == tensor_id(data)).order_by(Tensor.id)
        return list(session.scalars(query))


def read(reader: FileReader, row: Tensor) -> bytes:
    out = bytearray(row.size)
    reader.read_tensor_into(row.id, 0, memoryview(out))
    return bytes(out)


@pytest.mark.parametrize("cache_bytes", [0, None])
def test_a_private_copy_of_a_public_base_may_be_a_delta_of_its_own_delta(
    reg: Registry, bob: Caller, tuned: Tensor, cache_bytes: int | None
) -> None:
    """Resolved by content hash only, the two would need each other and be unreadable."""
    send_pack(reg, bob, "bob/m", frames_of(BASE, TUNED))
    public, private = rows_of(reg, BASE)
    with reg.db.read() as session:
        edges = session.execute(select(TensorBase.tensor_id, TensorBase.base_id)).all()
    assert sorted(map(tuple, edges)) == sorted([(tuned.id, public.id), (private.id, tuned.id)])
    for order in ((tuned, private, public), (private, public, tuned), (public, tuned, private)):
        reader = FileReader(reg, cache_bytes)
        for row in order:
            assert read(reader, row) == (TUNED if row is tuned else BASE)
    assert list(fsck(reg, read_data=True)) == []


def test_a_reader_finds_a_base_that_has_moved_by_the_rows_too(
    reg: Registry, bob: Caller, tuned: Tensor
) -> None:
    reader = FileReader(reg)
    send_pack(reg, bob, "bob/m", frames_of(BASE, TUNED))
    located = reader.locate([tuned.id])
    with reg.db.read() as session:
        packs = session.scalars(
            select(Frame.pack_id).where(Frame.tensor_id == rows_of(reg, BASE)[0].id)
        ).all()
    assert repack(reg, packs).condemned == 1
    for pack_id in packs:
        reg.store.delete(pack_key(pack_id))
    chunks = reader.stream_tensor(located, tuned.id, 0, tuned.size)
    assert b"".join(chunks) == TUNED


def replace_frames(reg: Registry, row: Tensor, data: bytes, base: bytes | None = None) -> None:
    """Replaces the frames of a stored tensor by frames without a base or against another base."""
    with PackSpool(reg, FileReader(reg), row.domain_id) as spool:
        for frame in frames_of(data, base):
            spool.add(frame)
        sealed = spool.seal()
    with reg.db.write() as session:
        make_live(session, sealed)
        new = sealed.tensors[row.hash]
        switch_tensor(session, row.id, new.frames, new.bases, 2)


def drop_rows(reg: Registry, row: Tensor) -> None:
    """Deletes the rows of an unused tensor as gc does, but keeps its pack."""
    with reg.db.write() as session:
        session.execute(delete(Hold).where(Hold.tensor_id == row.id))
        session.execute(delete(FileTensor).where(FileTensor.tensor_id == row.id))
        session.execute(delete(Tensor).where(Tensor.id == row.id))


@pytest.mark.parametrize("is_a_base", [False, True])
def test_a_reader_that_knows_an_old_encoding_finds_the_new_one_when_its_base_is_gone(
    reg: Registry, bob: Caller, tuned: Tensor, is_a_base: bool
) -> None:
    """The old frames still exist, but not their base."""
    (base,) = rows_of(reg, BASE)
    target, data = tuned, TUNED
    if is_a_base:  # the target is a delta of the tensor whose frames are replaced
        data = near(TUNED, seed=5)
        send_pack(reg, bob, "bob/m", frames_of(data, TUNED))
        (target,) = rows_of(reg, data)
    reader = FileReader(reg)
    located = reader.locate([target.id])
    replace_frames(reg, tuned, TUNED)
    drop_rows(reg, base)
    chunks = reader.stream_tensor(located, target.id, 0, target.size)
    assert b"".join(chunks) == data


def test_a_reader_that_knows_a_base_from_before_it_became_the_delta_meets_no_cycle(
    reg: Registry, bob: Caller
) -> None:
    ensure_repository(reg, bob, "bob/m", private=True)
    send_pack(reg, bob, "bob/m", frames_of(BASE))
    (base,) = rows_of(reg, BASE)
    (old,) = reg.store.list("packs/")
    data = near(TUNED, seed=5)
    send_pack(reg, bob, "bob/m", frames_of(TUNED, BASE))
    send_pack(reg, bob, "bob/m", frames_of(data, TUNED))
    (tuned,), (target,) = rows_of(reg, TUNED), rows_of(reg, data)
    reader = FileReader(reg)
    located = reader.locate([target.id])
    replace_frames(reg, tuned, TUNED)
    replace_frames(reg, base, BASE, TUNED)
    reg.store.delete(old.key)
    assert b"".join(reader.stream_tensor(located, target.id, 0, target.size)) == data


def test_a_reader_goes_on_in_another_row_of_the_same_contents(reg: Registry, bob: Caller) -> None:
    """The tensor is deleted, collected and sent again during a download."""
    ensure_repository(reg, bob, "bob/m", private=True)
    send_pack(reg, bob, "bob/m", frames_of(BASE))
    (row,) = rows_of(reg, BASE)
    reader = FileReader(reg)
    located = reader.locate([row.id])
    drop_rows(reg, row)
    for info in list(reg.store.list("packs/")):
        reg.store.delete(info.key)
    send_pack(reg, bob, "bob/m", frames_of(TUNED))  # takes the old row's id
    send_pack(reg, bob, "bob/m", frames_of(BASE))
    assert rows_of(reg, BASE)[0].id != row.id
    assert b"".join(reader.stream_tensor(located, row.id, 0, row.size)) == BASE


def test_what_is_really_lost_is_said_so(reg: Registry, tuned: Tensor) -> None:
    (base,) = rows_of(reg, BASE)
    with reg.db.read() as session:
        frame = session.scalars(select(Frame).where(Frame.tensor_id == base.id)).one()
    reg.store.delete(pack_key(frame.pack_id))
    with pytest.raises(DataLost, match="fsck"):
        read(FileReader(reg), tuned)


def test_frames_against_a_base_that_vanishes_meanwhile_are_refused(
    reg: Registry, bob: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_repository(reg, bob, "bob/m", private=True)
    send_pack(reg, bob, "bob/m", frames_of(BASE))
    take = FrameVerifier.take

    def take_after_deletion(
        self: FrameVerifier, tensor: bytes, frames: Sequence[UploadedFrame]
    ) -> None:
        drop_rows(reg, rows_of(reg, BASE)[0])
        take(self, tensor, frames)

    monkeypatch.setattr(FrameVerifier, "take", take_after_deletion)
    with pytest.raises(InvalidFrame, match="not here for you"):
        send_pack(reg, bob, "bob/m", frames_of(TUNED, BASE))


def test_an_ingest_whose_base_vanishes_meanwhile_stores_without_it(
    reg: Registry, bob: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tiny.to_file(tiny.base())
    tune = tiny.to_file(tiny.finetune(1e-5))
    push_ingested(reg, bob, "bob/base", {"m.safetensors": base})
    encode, is_first = PackSpool.encode, True

    def encode_after_deletion(*args: Any, **options: Any) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            delete_repository(reg, bob, "bob/base")
            age_everything(reg, 2)
            collect(reg)
        encode(*args, **options)

    monkeypatch.setattr(PackSpool, "encode", encode_after_deletion)
    revision = push_ingested(reg, bob, "bob/tune", {"m.safetensors": tune}, base="bob/base")
    assert not is_first
    assert {stored.depth for stored in stored_tensors(reg, revision).values()} == {0}
    assert read_file(reg, revision, "m.safetensors") == tune
    assert is_clean(reg)

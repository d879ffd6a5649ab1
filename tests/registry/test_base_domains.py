"""The same bytes stored privately and publicly: every delta is decoded from the very row it names.

The rows of tensor_bases are what cycles and depths are checked on, so decoding must follow them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from deltahub.codecs.ids import tensor_id
from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Frame, Tensor, TensorBase
from deltahub.registry.fsck import fsck
from deltahub.registry.repack import repack
from deltahub.registry.repositories import delete_repository, ensure_repository
from deltahub.registry.restore import Restorer
from deltahub.registry.store.keys import pack_key
from support.client_packs import frames_of, near, send_pack, weights
from support.ingested import push_ingested
from support.registry import caller, opened_registry

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


def read(restorer: Restorer, row: Tensor) -> bytes:
    out = bytearray(row.size)
    restorer.read_tensor_into(row.id, 0, memoryview(out))
    return bytes(out)


@pytest.mark.parametrize("cache_bytes", [0, None])
def test_a_private_copy_of_a_public_base_may_be_a_delta_of_its_own_delta(
    reg: Registry, bob: Caller, tuned: Tensor, cache_bytes: int | None
) -> None:
    """Resolved by content alone, the two would need each other and neither could be read."""
    send_pack(reg, bob, "bob/m", frames_of(BASE, TUNED))
    public, private = rows_of(reg, BASE)
    with reg.db.read() as session:
        edges = session.execute(select(TensorBase.tensor_id, TensorBase.base_id)).all()
    assert sorted(map(tuple, edges)) == sorted([(tuned.id, public.id), (private.id, tuned.id)])
    for order in ((tuned, private, public), (private, public, tuned), (public, tuned, private)):
        restorer = Restorer(reg, cache_bytes)
        for row in order:
            assert read(restorer, row) == (TUNED if row is tuned else BASE)
    assert list(fsck(reg, read_data=True)) == []


def test_a_reader_finds_a_base_that_has_moved_by_the_rows_too(
    reg: Registry, bob: Caller, tuned: Tensor
) -> None:
    restorer = Restorer(reg)
    send_pack(reg, bob, "bob/m", frames_of(BASE, TUNED))
    located = restorer.locate([tuned.id])
    with reg.db.read() as session:
        packs = session.scalars(
            select(Frame.pack_id).where(Frame.tensor_id == rows_of(reg, BASE)[0].id)
        ).all()
    assert repack(reg, packs).condemned == 1
    for pack_id in packs:
        reg.store.delete(pack_key(pack_id))
    pieces = restorer.stream_tensor(located, tuned.id, 0, tuned.size)
    assert b"".join(pieces) == TUNED

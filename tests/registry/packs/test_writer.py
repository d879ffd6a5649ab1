"""Packs are verified before they are used, switched in one transaction, never into a cycle."""

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from deltahub.codecs.ids import tensor_id
from deltahub.registry import Registry
from deltahub.registry.db.models import Domain, Frame, Pack, Tensor, TensorBase
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Conflict, DataLost, DeltaCycle, StorageFull
from deltahub.registry.packs.switch import BaseGone, insert_tensors, make_live, switch_tensor
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.storage.base import StoreFull
from support.codecs.frames import forge_header
from support.registry.client_packs import frames_of, near, weights
from support.registry.opened import opened_registry

MAX_DEPTH = 2


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path, pack_bytes=1 << 20) as registry:
        with registry.db.write() as session:
            if session.scalar(select(Domain.id).where(Domain.id == 1)) is None:
                session.add(Domain(id=1, key="namespace:1"))
        yield registry


def seal(reg: Registry, frames: Iterable[bytes]) -> SealedPacks:
    with PackSpool(reg, FileReader(reg), 1) as spool:
        for frame in frames:
            spool.add(frame)
        return spool.seal()


def store(reg: Registry, frames: Iterable[bytes]) -> dict[bytes, int]:
    return insert(reg, seal(reg, frames))


def insert(reg: Registry, sealed: SealedPacks) -> dict[bytes, int]:
    with reg.db.write() as session:
        make_live(session, sealed)
        return insert_tensors(session, sealed, MAX_DEPTH)


def store_one(reg: Registry, data: bytes, base: bytes | None = None) -> int:
    return store(reg, frames_of(data, base))[tensor_id(data)]


def switch(reg: Registry, row: int, sealed: SealedPacks) -> None:
    (tensor,) = sealed.tensors.values()
    with reg.db.write() as session:
        make_live(session, sealed)
        switch_tensor(session, row, tensor.frames, tensor.bases, MAX_DEPTH)


def read(reg: Registry, row: int) -> bytes:
    with reg.db.read() as session:
        size = session.get_one(Tensor, row).size
    out = bytearray(size)
    FileReader(reg).read_tensor_into(row, 0, memoryview(out))
    return bytes(out)


def depth(reg: Registry, row: int) -> int:
    with reg.db.read() as session:
        return session.get_one(Tensor, row).depth


def states(reg: Registry) -> list[str]:
    with reg.db.read() as session:
        return sorted(session.scalars(select(Pack.state)))


def family(size: int) -> list[bytes]:
    """Tensors that differ little from each other."""
    first = weights(5000)
    return [first] + [near(first, seed) for seed in range(1, size)]


def test_frames_of_many_tensors_go_into_one_pack(reg: Registry) -> None:
    tensors = [weights(1000, seed) for seed in range(5)]
    rows = store(reg, [frame for data in tensors for frame in frames_of(data)])
    assert [read(reg, rows[tensor_id(data)]) for data in tensors] == tensors
    assert states(reg) == ["live"]
    assert not list(reg.scratch.iterdir())


def test_a_tensor_may_go_over_several_packs(reg: Registry) -> None:
    data = weights(2 << 20)
    row = store(reg, frames_of(data, max_bytes=400_000))[tensor_id(data)]
    assert read(reg, row) == data
    with reg.db.read() as session:
        assert max(session.scalars(select(Pack.size)).all()) <= 1 << 20
    assert len(states(reg)) > 3


def test_frames_must_follow_each_other_and_be_complete(reg: Registry) -> None:
    frames = frames_of(weights(300_000), max_bytes=200_000)
    with PackSpool(reg, FileReader(reg), 1) as spool:
        spool.add(frames[0])
        with pytest.raises(ValueError, match="follow"):
            spool.add(frames[2])
        with pytest.raises(ValueError, match="missing"):
            spool.seal()
    assert states(reg) == []


class Meddler:
    """A registry's store that changes the bytes of what it is given."""

    def __init__(self, reg: Registry, change: Callable[[bytes], bytes]) -> None:
        self._store = reg.store
        self._change = change
        reg.store = self  # type: ignore[assignment]  # other methods are the store's

    def take_file(self, key: str, path: Path) -> None:
        path.write_bytes(self._change(path.read_bytes()))
        self._store.take_file(key, path)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_a_store_that_damages_a_pack_is_noticed_before_anything_counts(reg: Registry) -> None:
    Meddler(reg, lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(DataLost, match="pack"):
        seal(reg, frames_of(weights(5000)))
    assert states(reg) == ["writing"]
    with reg.db.read() as session:
        assert session.scalar(select(func.count()).select_from(Tensor)) == 0


def test_frames_that_decode_to_another_tensor_are_refused(reg: Registry) -> None:
    first, second = family(2)
    store_one(reg, first)
    for frame in (frames_of(second, first)[0], frames_of(second)[0]):
        with pytest.raises(DataLost, match="other bytes"):
            seal(reg, [forge_header(frame, tensor=tensor_id(b"somebody else"))])
    assert set(states(reg)) == {"live", "writing"}


def test_a_full_store_is_said_so_and_leaves_nothing_visible(reg: Registry) -> None:
    def refuse(data: bytes) -> bytes:
        raise StoreFull("no room")

    Meddler(reg, refuse)
    with pytest.raises(StorageFull):
        seal(reg, frames_of(weights(5000)))
    assert states(reg) == ["writing"]
    assert not list(reg.scratch.iterdir())


def test_what_somebody_else_has_stored_meanwhile_stays(reg: Registry) -> None:
    data = weights(5000)
    sealed = seal(reg, frames_of(data))
    row = store_one(reg, data)
    with reg.db.read() as session:
        before = session.scalars(select(Frame.pack_id)).all()
    assert insert(reg, sealed) == {tensor_id(data): row}
    with reg.db.read() as session:
        assert session.scalars(select(Frame.pack_id)).all() == before


def test_a_pack_that_gc_has_condemned_does_not_come_back(reg: Registry) -> None:
    sealed = seal(reg, frames_of(weights(5000)))
    with reg.db.write() as session:
        session.get_one(Pack, sealed.pack_ids[0]).state = "condemned"
    with pytest.raises(Conflict), reg.db.write() as session:
        make_live(session, sealed)


def test_a_delta_needs_its_base_at_the_moment_it_is_switched_to(reg: Registry) -> None:
    first, second = family(2)
    row = store_one(reg, first)
    sealed = seal(reg, frames_of(second, first))
    with reg.db.write() as session:
        session.delete(session.get_one(Tensor, row))
    with pytest.raises(BaseGone):
        insert(reg, sealed)
    assert "writing" in states(reg)


def test_a_chain_is_as_deep_as_allowed_and_no_deeper(reg: Registry) -> None:
    chain = family(4)
    rows = [store_one(reg, chain[0])]
    for i in (1, 2):
        rows.append(store_one(reg, chain[i], chain[i - 1]))
        assert depth(reg, rows[i]) == i
        assert read(reg, rows[i]) == chain[i]
    with pytest.raises(DeltaCycle, match="deep"):
        store_one(reg, chain[3], chain[2])


def test_a_stored_tensor_becomes_a_delta_and_an_anchor_again(reg: Registry) -> None:
    first, second = family(2)
    row, base = store_one(reg, second), store_one(reg, first)
    switch(reg, row, seal(reg, frames_of(second, first)))
    assert depth(reg, row) == 1
    with reg.db.read() as session:
        assert session.scalars(select(TensorBase.base_id)).all() == [base]
    assert read(reg, row) == second
    switch(reg, row, seal(reg, frames_of(second)))
    assert depth(reg, row) == 0
    with reg.db.read() as session:
        assert session.scalars(select(TensorBase)).all() == []
    assert read(reg, row) == second


def test_two_tensors_never_become_deltas_of_each_other(reg: Registry) -> None:
    first, second, third = family(3)
    rows = [store_one(reg, data) for data in (first, second, third)]
    there, back = seal(reg, frames_of(first, second)), seal(reg, frames_of(second, first))
    switch(reg, rows[0], there)
    with pytest.raises(DeltaCycle):
        switch(reg, rows[1], back)
    # A cycle over a third tensor is refused, too.
    switch(reg, rows[1], seal(reg, frames_of(second, third)))
    with pytest.raises(DeltaCycle):
        switch(reg, rows[2], seal(reg, frames_of(third, first)))
    assert [read(reg, row) for row in rows] == [first, second, third]
    assert [depth(reg, row) for row in rows] == [2, 1, 0]


def test_a_base_is_not_made_a_delta_if_its_dependents_became_too_deep(reg: Registry) -> None:
    anchor, other, middle, leaf = family(4)
    rows = {name: store_one(reg, name) for name in (anchor, other)}
    rows[middle] = store_one(reg, middle, anchor)
    rows[leaf] = store_one(reg, leaf, middle)
    with pytest.raises(DeltaCycle, match="chain of 3"):
        switch(reg, rows[anchor], seal(reg, frames_of(anchor, other)))
    assert depth(reg, rows[anchor]) == 0
    assert read(reg, rows[leaf]) == leaf


def test_depths_of_dependents_follow_their_base(reg: Registry) -> None:
    anchor, other, leaf = family(3)
    rows = {name: store_one(reg, name) for name in (anchor, other)}
    rows[leaf] = store_one(reg, leaf, anchor)
    switch(reg, rows[anchor], seal(reg, frames_of(anchor, other)))
    assert [depth(reg, rows[name]) for name in (other, anchor, leaf)] == [0, 1, 2]
    assert read(reg, rows[leaf]) == leaf
    switch(reg, rows[anchor], seal(reg, frames_of(anchor)))
    assert [depth(reg, rows[name]) for name in (other, anchor, leaf)] == [0, 0, 1]


def test_of_two_racing_planners_exactly_one_wins(reg: Registry) -> None:
    first, second = family(2)
    rows = [store_one(reg, first), store_one(reg, second)]
    for round_number in range(6):
        plans = [seal(reg, frames_of(first, second)), seal(reg, frames_of(second, first))]
        barrier = threading.Barrier(2)
        outcomes: list[str] = []

        def run(
            row: int,
            sealed: SealedPacks,
            barrier: threading.Barrier = barrier,
            outcomes: list[str] = outcomes,
        ) -> None:
            barrier.wait()
            try:
                switch(reg, row, sealed)
                outcomes.append("switched")
            except DeltaCycle:
                outcomes.append("refused")

        threads = [
            threading.Thread(target=run, args=pair) for pair in zip(rows, plans, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["refused", "switched"], round_number
        assert sorted(depth(reg, row) for row in rows) == [0, 1]
        assert [read(reg, row) for row in rows] == [first, second]
        for row, data in zip(rows, (first, second), strict=True):
            switch(reg, row, seal(reg, frames_of(data)))

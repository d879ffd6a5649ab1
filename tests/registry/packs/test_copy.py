"""Sparse packs are rewritten, byte for byte, while readers continue."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import File
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.maintenance.gc.apply import Outcome, apply_gc
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.packs.locations import TensorLocation
from deltahub.registry.storage.keys import pack_key
from support.models import tiny_models as tiny
from support.registry.collecting import collect, is_clean
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry

PATH = "model.safetensors"
BASE = tiny.to_file(tiny.base())
TUNE = tiny.to_file(tiny.finetune(1e-5))


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def make_sparse(reg: Registry, ann: Caller) -> int:
    """Make a pack whose bytes are mostly dead; returns a revision that needs the rest."""
    files = {f"{name}.bin": random.Random(name).randbytes(40_000) for name in "abcdef"}
    push_ingested(reg, ann, "ann/all", files)
    keep = push_ingested(reg, ann, "ann/keep", {"a.bin": files["a.bin"]})
    delete_repository(reg, ann, "ann/all")
    return keep


def test_a_sparse_pack_is_written_anew(reg: Registry, ann: Caller) -> None:
    keep = make_sparse(reg, ann)
    data = read_file(reg, keep, "a.bin")
    before = sum(item.size for item in reg.store.list("packs/"))
    plan = plan_gc(reg, lease_s=0, grace_s=0)
    assert len(plan.repack) == 1
    outcome = apply_gc(reg, plan)
    assert outcome.repacked == 1
    assert read_file(reg, keep, "a.bin") == data
    collect(reg)
    after = sum(item.size for item in reg.store.list("packs/"))
    assert before - after == plan.repack[0].size_bytes
    assert is_clean(reg)
    assert collect(reg) == Outcome()


def test_a_reader_with_an_old_place_goes_on_through_a_repack(reg: Registry, ann: Caller) -> None:
    keep = make_sparse(reg, ann)
    data = read_file(reg, keep, "a.bin")
    with reg.db.read() as session:
        file = session.scalars(
            select(File).join(Entry, Entry.file_id == File.id).where(Entry.revision_id == keep)
        ).one()
    stream = FileReader(reg).stream_file(file, 0, file.size, chunk_bytes=4096)
    first = bytes(next(stream))
    collect(reg)
    collect(reg)
    assert first + b"".join(stream) == data


def test_a_reader_asks_once_where_tensors_lie_and_again_when_they_have_moved(
    reg: Registry, ann: Caller
) -> None:
    class Counting(FileReader):
        n_asked = 0

        def locate(self, tensor_ids: Iterable[int]) -> dict[int, TensorLocation]:
            self.n_asked += 1
            return super().locate(tensor_ids)

    keep = make_sparse(reg, ann)
    data = read_file(reg, keep, "a.bin")
    with reg.db.read() as session:
        file = session.scalars(
            select(File).join(Entry, Entry.file_id == File.id).where(Entry.revision_id == keep)
        ).one()
    reader = Counting(reg, 80_000)  # too small a cache for the frame itself
    asked = []
    for _ in range(2):
        for _ in range(3):
            before = reader.n_asked
            assert b"".join(reader.stream_file(file, 0, file.size)) == data
            asked.append(reader.n_asked - before)
        collect(reg)
        collect(reg)
    # The recipe is located once after each commit. The first read locates its tensors, too. After
    # the collection, the first read meets a missing pack, locates the tensor again and drops its
    # cached location, so the second read locates it once more.
    assert asked == [2, 0, 0, 2, 1, 0]


def test_a_sparse_pack_that_does_not_check_is_not_copied(reg: Registry, ann: Caller) -> None:
    make_sparse(reg, ann)
    plan = plan_gc(reg, lease_s=0, grace_s=0)
    pack = plan.repack[0].id
    flip_a_bit(reg, pack_key(pack), 200)
    outcome = apply_gc(reg, plan)
    assert outcome.repacked == 0
    assert pack in outcome.notes[0]


def flip_a_bit(reg: Registry, key: str, at: int) -> None:
    data = bytearray(reg.store.size(key))
    reg.store.get_into(key, 0, memoryview(data))
    data[at] ^= 1
    reg.store.put(key, [bytes(data)])

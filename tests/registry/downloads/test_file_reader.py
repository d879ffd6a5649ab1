"""Reading files: any range, exactly, in bounded memory; damage is an error, never padding."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from deltahub.registry import Registry
from deltahub.registry.db.models import File, Pack, Tensor
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost, EntryNotFound, NotReady
from deltahub.registry.ingest.pipeline import Ingest
from deltahub.registry.packs.copy import repack
from deltahub.registry.storage.keys import pack_key
from support.models import tiny_models
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry, push

PATH = "model.safetensors"


@pytest.fixture(scope="module")
def pair() -> tuple[bytes, bytes]:
    """(base, fine-tune): files of a trained model in BF16."""
    models = (tiny_models.base(), tiny_models.finetune(1e-4))
    base, tuned = (tiny_models.to_file(tiny_models.cast(m, torch.bfloat16)) for m in models)
    return base, tuned


@pytest.fixture(scope="module")
def stored(
    pair: tuple[bytes, bytes], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    """Base and fine-tune, split into many small frames and packs."""
    with opened_registry(tmp_path_factory.mktemp("stored"), pack_bytes=64 << 10) as reg:
        ann = caller(reg, "ann")
        push_ingested(reg, ann, "ann/base", {PATH: pair[0]})
        push_ingested(reg, ann, "ann/tuned", {PATH: pair[1]}, base="ann/base")
        yield reg


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


def file_of(reg: Registry, revision: int, path: str = PATH) -> File:
    with reg.db.read() as session:
        return session.scalars(
            select(File)
            .join(Entry, Entry.file_id == File.id)
            .where(Entry.revision_id == revision, Entry.path == path)
        ).one()


def read(reader: FileReader, file: File, start: int, end: int) -> bytes:
    return b"".join(reader.stream_file(file, start, end))


def packs(reg: Registry) -> list[str]:
    with reg.db.read() as session:
        return list(session.scalars(select(Pack.id).where(Pack.state == "live")))


@given(data=st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_range_of_a_delta_is_what_was_pushed(
    stored: Registry, pair: tuple[bytes, bytes], data: st.DataObject
) -> None:
    file = file_of(stored, 2)
    start = data.draw(st.integers(0, file.size))
    end = data.draw(st.integers(start, file.size))
    cache = data.draw(st.sampled_from([0, 10_000, 1 << 20]))
    assert read(FileReader(stored, cache), file, start, end) == pair[1][start:end]


def test_a_delta_is_really_read_through_its_base(stored: Registry) -> None:
    with stored.db.read() as session:
        assert session.scalars(select(Tensor.depth).where(Tensor.depth > 0)).all()


def test_chunks_are_about_as_large_as_asked(stored: Registry) -> None:
    file = file_of(stored, 2)
    sizes = [c.nbytes for c in FileReader(stored).stream_file(file, 0, file.size, 10_000)]
    assert sum(sizes) == file.size
    assert max(sizes) <= 10_000
    assert len(sizes) < 3 * file.size / 10_000


def test_a_tensor_is_read_from_any_byte(stored: Registry) -> None:
    reader = FileReader(stored)
    with stored.db.read() as session:
        tensor = session.scalars(
            select(Tensor).where(Tensor.depth == 1).order_by(Tensor.size.desc())
        ).first()
    assert tensor is not None
    whole = bytearray(tensor.size)
    reader.read_tensor_into(tensor.id, 0, memoryview(whole))
    for first, n in ((0, 1), (1, 1000), (tensor.size - 1, 1), (tensor.size // 2, 30_001)):
        out = bytearray(n)
        reader.read_tensor_into(tensor.id, first, memoryview(out))
        assert out == whole[first : first + n]


def test_a_range_outside_the_file_is_a_bug_of_the_caller(stored: Registry) -> None:
    file = file_of(stored, 1)
    with pytest.raises(ValueError, match="bytes"):
        FileReader(stored).stream_file(file, 0, file.size + 1)


@pytest.mark.parametrize("place", [0.01, 0.3, 0.5, 0.9])
def test_a_flipped_bit_is_refused_and_never_padded(
    reg: Registry, pair: tuple[bytes, bytes], place: float
) -> None:
    push_ingested(reg, caller(reg, "ann"), "ann/base", {PATH: pair[0]})
    (pack,) = packs(reg)
    size = reg.store.size(pack_key(pack))
    damaged = bytearray(size)
    reg.store.get_into(pack_key(pack), 0, memoryview(damaged))
    damaged[int(size * place)] ^= 4
    reg.store.put(pack_key(pack), [damaged])
    file = file_of(reg, 1)
    pieces: list[memoryview] = []
    with pytest.raises(DataLost, match=r"fsck"):
        pieces.extend(FileReader(reg).stream_file(file, 0, file.size))
    got = b"".join(pieces)
    assert pair[0].startswith(got)
    assert len(got) < file.size


def test_a_pack_cut_short_or_gone_is_data_loss(reg: Registry, pair: tuple[bytes, bytes]) -> None:
    push_ingested(reg, caller(reg, "ann"), "ann/base", {PATH: pair[0]})
    (pack,) = packs(reg)
    whole = bytearray(reg.store.size(pack_key(pack)))
    reg.store.get_into(pack_key(pack), 0, memoryview(whole))
    file = file_of(reg, 1)
    reader = FileReader(reg)
    recipe_first = read(reader, file, 0, 8)
    reg.store.put(pack_key(pack), [whole[: len(whole) // 2]])
    with pytest.raises(DataLost):
        read(reader, file, 0, file.size)
    reg.store.delete(pack_key(pack))
    with pytest.raises(DataLost):
        read(FileReader(reg), file, 0, file.size)
    reg.store.put(pack_key(pack), [whole])
    assert read(FileReader(reg), file, 0, 8) == recipe_first == pair[0][:8]


def test_a_stream_goes_on_where_its_frames_were_moved_to(
    reg: Registry, pair: tuple[bytes, bytes]
) -> None:
    ann = caller(reg, "ann")
    push_ingested(reg, ann, "ann/base", {PATH: pair[0]})
    push_ingested(reg, ann, "ann/tuned", {PATH: pair[1]}, base="ann/base")
    file = file_of(reg, 2)
    reader = FileReader(reg, 0)
    stream = reader.stream_file(file, 0, file.size, 4096)
    got = bytes(next(stream))
    before = packs(reg)
    repack(reg, before)
    assert not set(before) & set(packs(reg))
    for pack in before:
        reg.store.delete(pack_key(pack))
    assert got + b"".join(stream) == pair[1]


def test_a_stream_from_the_landing_goes_on_in_the_recipe(
    reg: Registry, pair: tuple[bytes, bytes]
) -> None:
    data = pair[0] + np.random.default_rng(0).bytes(3 << 20)
    job_id = push(reg, caller(reg, "ann"), "ann/m", {"a.bin": data}).job_id
    assert job_id is not None
    file = file_of(reg, 1, "a.bin")
    stream = FileReader(reg).stream_file(file, 5, file.size)
    got = bytes(next(stream))
    assert file.state == "landed"
    Ingest(reg, FileReader(reg), 1, job_id).run()
    assert not list(reg.store.list("landing/"))
    assert got + b"".join(stream) == data[5:]


def test_a_deleted_file_and_an_unproved_one_have_their_own_errors(
    reg: Registry, pair: tuple[bytes, bytes]
) -> None:
    push(reg, caller(reg, "ann"), "ann/m", {PATH: pair[0]})
    file = file_of(reg, 1)
    for info in reg.store.list("landing/"):
        reg.store.delete(info.key)
    with pytest.raises(DataLost):
        read(FileReader(reg), file, 0, 10)
    with reg.db.write() as session:
        session.delete(session.get_one(Entry, (1, PATH)))
        session.delete(session.get_one(File, file.id))
    with pytest.raises(EntryNotFound):
        read(FileReader(reg), file, 0, 10)
    unproved = File(id=9, domain_id=1, sha256="0" * 64, size=10, state="proving")
    with pytest.raises(NotReady):
        read(FileReader(reg), unproved, 0, 10)


def test_memory_stays_bounded_for_a_large_delta(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    words = random.integers(0, 1 << 16, 24 << 20, dtype=np.uint16)
    base = torch.from_numpy(words.view(np.int16)).view(torch.bfloat16).reshape(3072, -1)
    changed = torch.from_numpy((words ^ (random.random(len(words)) < 0.01)).view(np.int16))
    tuned = changed.view(torch.bfloat16).reshape(3072, -1)
    files = [tiny_models.to_file({"w": tensor}) for tensor in (base, tuned)]
    with opened_registry(tmp_path, cache_bytes=8 << 20) as reg:
        ann = caller(reg, "ann")
        push_ingested(reg, ann, "ann/base", {PATH: files[0]})
        push_ingested(reg, ann, "ann/tuned", {PATH: files[1]}, base="ann/base")
        with reg.db.read() as session:
            assert session.scalars(select(Tensor.size).where(Tensor.depth == 1)).all()
        file = file_of(reg, 2)
        reader = FileReader(reg)
        tracemalloc.start()
        try:
            position = 0
            for piece in reader.stream_file(file, 0, file.size):
                assert piece == files[1][position : position + piece.nbytes]
                position += piece.nbytes
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert position == file.size > 45 << 20
    assert peak < 40 << 20

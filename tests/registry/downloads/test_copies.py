"""Files whose packs lie far away: few requests, copies on this machine, proofs from the store."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sqlalchemy import func, select

from deltahub.registry import Registry
from deltahub.registry.db.models import File, Pack
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.losses.marks import any_lost
from deltahub.registry.packs.base_cache import HotBases
from deltahub.registry.storage.base import StoreUnavailable
from deltahub.registry.storage.keys import pack_key
from deltahub.registry.storage.local import FileStore
from support.models import tiny_models
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry
from support.stores.cached_stores import cached

PATH = "model.safetensors"


class FarStore(FileStore):
    """requests: of get_into. is_away: nothing can be read."""

    is_away = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.requests: list[tuple[str, int, int]] = []

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        if self.is_away:
            raise StoreUnavailable(f"{key}: the store is away")
        self.requests.append((key, start, out.nbytes))
        super().get_into(key, start, out)


@pytest.fixture(scope="module")
def pair() -> tuple[bytes, bytes]:
    models = (tiny_models.base(), tiny_models.finetune(1e-4))
    base, tuned = (tiny_models.to_file(tiny_models.cast(m, torch.bfloat16)) for m in models)
    return base, tuned


@pytest.fixture
def reg(tmp_path: Path, pair: tuple[bytes, bytes]) -> Iterator[Registry]:
    """A base and its fine-tune."""
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        push_ingested(reg, ann, "ann/base", {PATH: pair[0]})
        push_ingested(reg, ann, "ann/tuned", {PATH: pair[1]}, base="ann/base")
        yield reg


@pytest.fixture
def far(reg: Registry) -> FarStore:
    """The hub's objects, read from far away, with copies on this machine."""
    store = FarStore(reg.data_dir / "objects")
    reg.store = cached(reg.data_dir / "cache", store)
    return store


def serving(reg: Registry) -> FileReader:
    """A reader as the server has it, which remembers nothing yet."""
    return FileReader(reg, hot_bases=HotBases(reg.disk, reg.scratch, 0))


def read(reader: FileReader, reg: Registry, revision: int) -> bytes:
    with reg.db.read() as session:
        file = session.scalars(
            select(File).join(Entry, Entry.file_id == File.id).where(Entry.revision_id == revision)
        ).one()
    return b"".join(reader.stream_file(file, 0, file.size))


def test_the_first_download_takes_few_requests_and_the_second_none(
    reg: Registry, far: FarStore, pair: tuple[bytes, bytes]
) -> None:
    assert read(serving(reg), reg, 2) == pair[1]
    with reg.db.read() as session:
        n_packs = session.scalar(select(func.count()).select_from(Pack))
    # The recipe, and some hundred KiB of frames of the fine-tune and of its base.
    assert len(far.requests) <= 3 * (n_packs or 0)
    far.is_away = True
    assert read(serving(reg), reg, 2) == pair[1]


def test_what_proves_is_read_from_the_store_itself(
    reg: Registry, far: FarStore, pair: tuple[bytes, bytes]
) -> None:
    assert read(serving(reg), reg, 2) == pair[1]
    far.is_away = True
    with pytest.raises(StoreUnavailable):
        read(FileReader(reg), reg, 2)


def test_copies_of_damaged_packs_do_not_outlive_the_repair(
    reg: Registry, far: FarStore, pair: tuple[bytes, bytes]
) -> None:
    with reg.db.read() as session:
        packs = {pack.id: pack.size for pack in session.scalars(select(Pack))}
    right = {}
    for pack_id, size in packs.items():
        path = far.root / pack_key(pack_id)
        right[path] = path.read_bytes()
        damaged = bytearray(right[path])
        for at in range(0, size, 50):
            damaged[at] ^= 1
        path.write_bytes(damaged)
        reg.store.get_cached_into(pack_key(pack_id), 0, memoryview(bytearray(size)))
    # Another machine puts the right bytes back: nobody here drops the copies.
    for path, data in right.items():
        path.write_bytes(data)
    for revision in (1, 2):
        assert read(serving(reg), reg, revision) == pair[revision - 1]
    with reg.db.read() as session:
        assert not any_lost(session, range(1, 50))
    far.is_away = True  # the copies have been replaced
    assert read(serving(reg), reg, 2) == pair[1]

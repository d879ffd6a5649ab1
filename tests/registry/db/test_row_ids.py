"""SQLite gives the ids of deleted rows to new rows. A late reader must not get the bytes of another
file, which may be private."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from sqlalchemy import select

from deltahub.registry import Registry
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import File
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost, EntryNotFound
from deltahub.registry.maintenance.gc.apply import apply_gc
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.packs.locations import TensorLocation
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry

MINE, SECRET = (random.Random(seed).randbytes(5_000) for seed in range(2))


def push_mine(reg: Registry) -> File:
    revision = push_ingested(reg, caller(reg, "ann"), "ann/m", {"a.bin": MINE})
    return file_of(reg, revision)


def replace_by_secret(reg: Registry) -> File:
    """Delete the first file; a private file gets its row ids."""
    delete_repository(reg, caller(reg, "ann"), "ann/m")
    apply_gc(reg, plan_gc(reg, lease_s=0, grace_s=0))
    bob = caller(reg, "bob")
    return file_of(reg, push_ingested(reg, bob, "bob/secret", {"a.bin": SECRET}, private=True))


def file_of(reg: Registry, revision: int) -> File:
    with reg.db.read() as session:
        return session.scalars(
            select(File).join(Entry, Entry.file_id == File.id).where(Entry.revision_id == revision)
        ).one()


def test_a_recipe_that_is_another_files_is_not_followed(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        mine = push_mine(reg)
        assert replace_by_secret(reg).recipe_tensor_id == mine.recipe_tensor_id
        reader = FileReader(reg)
        with pytest.raises(EntryNotFound):
            b"".join(reader.stream_file(mine, 0, mine.size))
        with pytest.raises(EntryNotFound):
            reader.read_recipe(mine)


def test_a_tensor_that_is_another_is_not_read(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        mine = push_mine(reg)

        class Late(FileReader):
            """Locates tensors only after all rows have changed."""

            is_late = False

            def locate(self, tensor_ids: Iterable[int]) -> dict[int, TensorLocation]:
                if self.is_late:
                    self.is_late = False
                    replace_by_secret(reg)
                return super().locate(tensor_ids)

        reader = Late(reg)
        recipe = reader._recipe_of(mine)
        reader.is_late = True
        with pytest.raises(DataLost):
            b"".join(reader.stream_recipe(mine.domain_id, recipe, 0, mine.size))
        assert not reader.is_late


def test_places_that_a_reader_remembers_are_never_those_of_other_bytes(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        mine = push_mine(reg)
        reader = FileReader(reg)
        recipe = reader._recipe_of(mine)

        def read(file: File) -> bytes:
            return b"".join(reader.stream_file(file, 0, file.size))

        assert read(mine) == MINE
        secret = replace_by_secret(reg)
        # Verification reads the rows again, whatever a reader has cached.
        with pytest.raises(DataLost):
            b"".join(reader.stream_recipe(mine.domain_id, recipe, 0, mine.size))
        again = push_mine(reg)
        assert again.recipe_tensor_id != mine.recipe_tensor_id
        assert [read(file) for file in (again, secret, again)] == [MINE, SECRET, MINE]

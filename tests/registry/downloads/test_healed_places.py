"""A reader finds what was pushed again within the same request, whatever it had cached before."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from sqlalchemy import select

from deltahub.codecs.frames import parse_header
from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import File, Frame, Pack, Revision
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.downloads.plan import plan_download, stream_frames
from deltahub.registry.errors import DataLost
from deltahub.registry.storage.keys import pack_key
from deltahub.registry.uploads.known_files import query_and_keep
from deltahub.registry.xet.virtual_xorbs import VirtualFile
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested, stored_tensors
from support.registry.opened import caller, opened_registry

PATH = "model.safetensors"
BASE = tiny.to_file(tiny.base())
AGAIN = tiny.to_file({**tiny.base(), "one.more": torch.zeros(3)})
TUNE = tiny.to_file(tiny.finetune(1e-5))

Read = Callable[[Registry, FileReader, File], bytes]


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        # A pack that stays, because a hub that has lost most of its packs takes no push.
        push_ingested(registry, caller(registry, "ann"), "ann/notes", {"notes.txt": b"first"})
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def file_of(reg: Registry, revision: int) -> File:
    with reg.db.read() as session:
        query = select(File).join(Entry, Entry.file_id == File.id)
        return session.scalars(query.where(Entry.revision_id == revision)).one()


def whole(reg: Registry, reader: FileReader, file: File) -> bytes:
    return b"".join(reader.stream_file(file, 0, file.size))


def in_ranges(reg: Registry, reader: FileReader, file: File) -> bytes:
    step = 100_000
    starts = range(0, file.size, step)
    parts = [reader.stream_file(file, i, min(i + step, file.size)) for i in starts]
    return b"".join(piece for part in parts for piece in part)


def by_xet(reg: Registry, reader: FileReader, file: File) -> bytes:
    virtual = VirtualFile(file.sha256, file.size)
    n_bytes = virtual.stored_bytes(0)
    pieces = virtual.read(0, 0, n_bytes, lambda a, b: reader.stream_pieces(file, a, b))
    return b"".join(view for views in pieces for view in views)


def recipe(reg: Registry, reader: FileReader, file: File) -> bytes:
    return reader.read_recipe(file)


READS = [whole, in_ranges, by_xet, recipe]


def damage(reg: Registry, pack: str) -> None:
    """Flip a bit in a block of every frame of the pack."""
    data = contents(reg, pack)
    with reg.db.read() as session:
        frames = session.scalars(select(Frame).where(Frame.pack_id == pack)).all()
    for frame in frames:
        data[frame.offset + parse_header(data[frame.offset :]).prefix_length] ^= 4
    reg.store.put(pack_key(pack), [bytes(data)])


def lose(reg: Registry, pack: str) -> None:
    reg.store.delete(pack_key(pack))


def contents(reg: Registry, pack: str) -> bytearray:
    data = bytearray(reg.store.size(pack_key(pack)))
    reg.store.get_into(pack_key(pack), 0, memoryview(data))
    return data


def packs_of(reg: Registry) -> list[str]:
    """All packs after the first."""
    with reg.db.read() as session:
        return list(session.scalars(select(Pack.id).order_by(Pack.created_at).offset(1)))


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("harm", [damage, lose])
def test_what_was_pushed_again_is_read_at_the_first_try(
    reg: Registry, ann: Caller, read: Read, harm: Callable[[Registry, str], None]
) -> None:
    file = file_of(reg, push_ingested(reg, ann, "ann/base", {PATH: BASE}))
    reader = FileReader(reg)
    right = read(reg, reader, file)
    for pack in packs_of(reg):
        harm(reg, pack)
    forgetful = FileReader(reg)
    with pytest.raises(DataLost):
        read(reg, forgetful, file)
    # A private push of the same file rebuilds all tensors and the recipe.
    push_ingested(reg, caller(reg, "ben"), "ben/own", {PATH: BASE}, private=True)
    assert read(reg, reader, file) == right
    assert read(reg, forgetful, file) == right


@pytest.mark.parametrize("harm", [damage, lose])
def test_a_base_that_was_pushed_again_is_found_below_its_deltas(
    reg: Registry, ann: Caller, harm: Callable[[Registry, str], None]
) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    base_packs = packs_of(reg)
    tunes = push_ingested(reg, ann, "ann/tune", {PATH: TUNE}, base="ann/base")
    assert any(each.bases for each in stored_tensors(reg, tunes).values())
    file = file_of(reg, tunes)
    reader = FileReader(reg, cache_bytes=64 << 10)  # places are cached, blocks are not
    assert whole(reg, reader, file) == TUNE
    for pack in base_packs:
        harm(reg, pack)
    push_ingested(reg, ann, "ann/again", {PATH: AGAIN})
    assert whole(reg, reader, file) == TUNE


def test_a_download_that_has_begun_goes_on_at_the_new_place(reg: Registry, ann: Caller) -> None:
    file = file_of(reg, push_ingested(reg, ann, "ann/base", {PATH: BASE}))
    reader = FileReader(reg)
    pieces = reader.stream_file(file, 0, file.size, 4096)
    begun = bytes(next(pieces))
    for pack in packs_of(reg):
        damage(reg, pack)
    push_ingested(reg, ann, "ann/again", {PATH: AGAIN})
    assert begun + b"".join(pieces) == BASE


def test_a_pack_that_was_restored_in_its_place_is_read_at_the_first_try(
    reg: Registry, ann: Caller
) -> None:
    file = file_of(reg, push_ingested(reg, ann, "ann/base", {PATH: BASE}))
    good = {pack: contents(reg, pack) for pack in packs_of(reg)}
    for pack in good:
        damage(reg, pack)
    reader = FileReader(reg)
    with pytest.raises(DataLost):
        whole(reg, reader, file)
    for pack, data in good.items():
        reg.store.put(pack_key(pack), [bytes(data)])
    assert whole(reg, reader, file) == BASE


def test_frames_are_sent_from_their_new_place(reg: Registry, ann: Caller) -> None:
    revision = push_ingested(reg, ann, "ann/base", {PATH: BASE})
    file = file_of(reg, revision)
    reader = FileReader(reg)
    with reg.db.read() as session:
        row = session.get_one(Revision, revision)
    for pack in packs_of(reg):
        lose(reg, pack)
    push_ingested(reg, caller(reg, "ben"), "ben/own", {PATH: BASE}, private=True)
    planned = plan_download(reg, reader, ann, file).tensors
    stream = stream_frames(reg, reader, ann, row, [each.id for each in planned])
    assert sum(map(len, stream.chunks)) == stream.n_bytes > 0


def test_damage_that_a_reader_met_is_mended_by_the_next_push_of_the_same_file(
    reg: Registry, ann: Caller
) -> None:
    base = push_ingested(reg, ann, "ann/base", {PATH: BASE})
    tune = push_ingested(reg, ann, "ann/tune", {PATH: TUNE}, base="ann/base")
    file = file_of(reg, base)
    for pack in packs_of(reg):
        damage(reg, pack)
    with pytest.raises(DataLost):
        whole(reg, FileReader(reg), file_of(reg, tune))
    with pytest.raises(DataLost):
        whole(reg, FileReader(reg), file)
    assert query_and_keep(reg, ann, "ann/base", [(file.sha256, file.size)]) == []
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    assert whole(reg, FileReader(reg), file_of(reg, base)) == BASE

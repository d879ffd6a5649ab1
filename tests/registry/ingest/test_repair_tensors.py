"""Tensors that were damaged in the store are repaired by the next push of the same tensors."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from sqlalchemy import select

from deltahub.codecs.frames import parse_header
from deltahub.registry import Registry
from deltahub.registry.db.models import File, Frame, Pack, Revision, Tensor
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost
from deltahub.registry.ingest.pipeline import Ingest
from deltahub.registry.jobs.queue import mark_running
from deltahub.registry.packs.writer import PackSpool
from deltahub.registry.storage.keys import pack_key
from support.models import tiny_models
from support.registry.ingested import push_ingested, read_file, stored_tensors
from support.registry.opened import caller, opened_registry, push

PATH = "model.safetensors"


def model(tensors: tiny_models.Tensors, note: str = "") -> bytes:
    words = tiny_models.cast(tensors, torch.bfloat16)
    metadata = {"note": note} if note else None
    return save({name: each.contiguous() for name, each in words.items()}, metadata)


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


def damage(
    reg: Registry, change: Callable[[bytearray, Frame], None], tensor: int | None = None
) -> None:
    """Damage the largest frame of this tensor; None: the largest frame that is no delta."""
    query = select(Frame).join(Tensor, Tensor.id == Frame.tensor_id).order_by(Frame.length.desc())
    chosen = Tensor.depth == 0 if tensor is None else Tensor.id == tensor
    with reg.db.read() as session:
        frame = session.scalars(query.where(chosen)).first()
    assert frame is not None
    key = pack_key(frame.pack_id)
    data = bytearray(reg.store.size(key))
    reg.store.get_into(key, 0, memoryview(data))
    change(data, frame)
    reg.store.put(key, [bytes(data)])


def flip_in_a_block(data: bytearray, frame: Frame) -> None:
    data[frame.offset + parse_header(data[frame.offset :]).prefix_length + 9] ^= 4


def lose_a_disk_block(data: bytearray, frame: Frame) -> None:
    begin = frame.offset + frame.length // 2
    data[begin : begin + 512] = bytes(512)


@pytest.mark.parametrize("change", [flip_in_a_block, lose_a_disk_block])
def test_a_push_of_the_same_tensors_brings_back_all_that_need_them(
    reg: Registry, change: Callable[[bytearray, Frame], None]
) -> None:
    ann, ben = caller(reg, "ann"), caller(reg, "ben")
    base, tuned = tiny_models.base(), tiny_models.finetune(1e-4)
    bases = push_ingested(reg, ann, "ann/base", {PATH: model(base)})
    tunes = push_ingested(reg, ann, "ann/tuned", {PATH: model(tuned)}, base="ann/base")
    assert any(each.bases for each in stored_tensors(reg, tunes).values())
    damage(reg, change)
    for revision in (bases, tunes):
        with pytest.raises(DataLost):
            read_file(reg, revision, PATH)
    again = push_ingested(reg, ben, "ben/copy", {PATH: model(base, "the same once more")})
    assert read_file(reg, again, PATH) == model(base, "the same once more")
    assert read_file(reg, bases, PATH) == model(base)
    assert read_file(reg, tunes, PATH) == model(tuned)


def test_objects_that_are_gone_come_back_too(reg: Registry) -> None:
    ann = caller(reg, "ann")
    push_ingested(reg, ann, "ann/base", {PATH: model(tiny_models.base())})
    with reg.db.read() as session:
        packs = session.scalars(select(Pack.id)).all()
    for pack in packs:
        reg.store.delete(pack_key(pack))
    again = push_ingested(reg, ann, "ann/again", {PATH: model(tiny_models.base(), "again")})
    assert read_file(reg, again, PATH) == model(tiny_models.base(), "again")


def test_a_private_push_heals_what_is_public(reg: Registry) -> None:
    ann, ben = caller(reg, "ann"), caller(reg, "ben")
    public = push_ingested(reg, ann, "ann/base", {PATH: model(tiny_models.base())})
    damage(reg, flip_in_a_block)
    again = model(tiny_models.base(), "mine")
    private = push_ingested(reg, ben, "ben/own", {PATH: again}, private=True)
    assert read_file(reg, private, PATH) == again
    assert read_file(reg, public, PATH) == model(tiny_models.base())


def packs_of(reg: Registry) -> dict[int, set[str]]:
    with reg.db.read() as session:
        packs: dict[int, set[str]] = {}
        for tensor, pack in session.execute(select(Frame.tensor_id, Frame.pack_id)):
            packs.setdefault(tensor, set()).add(pack)
        return packs


def test_what_is_whole_stays_where_it_is(reg: Registry) -> None:
    ann = caller(reg, "ann")
    push_ingested(reg, ann, "ann/base", {PATH: model(tiny_models.base())})
    before = packs_of(reg)
    damage(reg, flip_in_a_block)
    push_ingested(reg, ann, "ann/again", {PATH: model(tiny_models.base(), "again")})
    after = packs_of(reg)
    moved = [tensor for tensor, packs in before.items() if after[tensor] != packs]
    assert len(moved) == 1


@pytest.mark.parametrize("path", [PATH, "notes.bin"])
def test_a_damaged_recipe_comes_back_with_a_push_of_the_file(reg: Registry, path: str) -> None:
    ann, ben = caller(reg, "ann"), caller(reg, "ben")
    data = model(tiny_models.base())
    public = push_ingested(reg, ann, "ann/base", {path: data})
    with reg.db.read() as session:
        recipe = session.scalars(select(File.recipe_tensor_id)).one()
    damage(reg, flip_in_a_block, recipe)
    with pytest.raises(DataLost):
        read_file(reg, public, path)
    private = push_ingested(reg, ben, "ben/own", {path: data}, private=True)
    assert read_file(reg, private, path) == data
    assert read_file(reg, public, path) == data


def test_a_base_that_comes_back_keeps_its_deltas(reg: Registry) -> None:
    ann = caller(reg, "ann")
    files = {PATH: model(tiny_models.base())}
    push_ingested(reg, ann, "ann/base", files)
    tuned = model(tiny_models.finetune(1e-4))
    tunes = push_ingested(reg, ann, "ann/tuned", {PATH: tuned}, base="ann/base")
    before = stored_tensors(reg, tunes)
    damage(reg, flip_in_a_block)
    both = {"a.safetensors": model(tiny_models.base(), "a"), "b.safetensors": tuned}
    push_ingested(reg, ann, "ann/both", both)
    assert read_file(reg, tunes, PATH) == tuned
    after = stored_tensors(reg, tunes)
    assert {name: each.bases for name, each in after.items()} == {
        name: each.bases for name, each in before.items()
    }


def test_another_job_may_finish_the_file_meanwhile(
    reg: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_ingested(reg, caller(reg, "ann"), "ann/base", {PATH: model(tiny_models.base())})
    damage(reg, flip_in_a_block)
    data = model(tiny_models.base(), "again")
    jobs = [begun(reg, name, data) for name in ("ann", "ben")]
    first, second = (ingest for _, ingest in jobs)

    was_overtaken, encode = threading.Event(), PackSpool.encode

    def overtaken(*args: object, **kwargs: object) -> None:
        monkeypatch.undo()
        finish(first)
        was_overtaken.set()
        encode(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(PackSpool, "encode", overtaken)
    finish(second)
    assert was_overtaken.is_set()
    for revision, _ in jobs:
        assert read_file(reg, revision, PATH) == data


def begun(reg: Registry, name: str, data: bytes) -> tuple[int, Ingest]:
    """Push the file and run its ingest up to the last step: all is stored, nothing is finished."""
    pushed = push(reg, caller(reg, name), f"{name}/again", {PATH: data})
    assert pushed.job_id is not None
    with reg.db.write() as session:
        query = select(Revision.id).where(Revision.commit == pushed.commit)
        revision = session.scalars(query).one()
        assert mark_running(session, pushed.job_id)
    ingest = Ingest(reg, FileReader(reg), revision, pushed.job_id)
    for files in ingest.pending_files():
        ingest.scan(files)
    while ingest.store_next_pack():
        continue
    return revision, ingest


def finish(ingest: Ingest) -> None:
    for files in ingest.pending_files():
        ingest.finish(files)
    ingest.release()

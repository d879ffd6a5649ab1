"""Ingest: every file is rebuilt exactly, stored once and small; a step may be repeated."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from sqlalchemy import func, select

from deltahub.codecs.dtypes import HEADER_BITS
from deltahub.registry import Registry
from deltahub.registry.db.models import File, FileTensor, Frame, Hold, Landing, Pack, Tensor
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost
from deltahub.registry.ingest.pipeline import Ingest
from deltahub.registry.storage.keys import landing_key
from support.models import tiny_models
from support.registry.ingested import push_ingested, read_file, stored_tensors
from support.registry.opened import caller, opened_registry, push, sha256_of
from support.stores.durable_disk import DurableDisk


def safetensors(
    tensors: dict[str, tuple[str, list[int], bytes]],
    *,
    gap: bytes = b"",
    trailing: bytes = b"",
    indent: int | None = None,
) -> bytes:
    """A safetensors file with `gap` after every tensor and `trailing` at its end."""
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data + gap
    text = json.dumps(header, indent=indent).encode()
    return struct.pack("<Q", len(text)) + text + body + trailing


RANDOM = np.random.default_rng(3).bytes(40_000)

ODD_FILES = {
    "tiny.txt": b"x" * 300,
    "empty.bin": b"",
    "header-only.safetensors": safetensors({}),
    "zero-dims.safetensors": safetensors({"scalar": ("F32", [], b"\0\1\2\3")}),
    "zero-size.safetensors": safetensors({"none": ("F16", [0, 7], b""), "a": ("U8", [3], b"abc")}),
    "gaps.safetensors": safetensors(
        {"a": ("F32", [50, 20], RANDOM[:4000]), "b": ("BF16", [500], RANDOM[4000:5000])},
        gap=b"\xee" * 3000,
        trailing=b"tail" * 700,
        indent=3,
    ),
    "twins.safetensors": safetensors(
        {"a": ("F32", [100], RANDOM[:400]), "b": ("F16", [200], RANDOM[:400])}
    ),
    "lies.safetensors": b"this is no safetensors file at all" * 200,
    "cut.safetensors": safetensors({"a": ("F32", [100], RANDOM[:400])})[:-1],
    "chunks.bin": RANDOM + bytes(17 << 20) + RANDOM,
    "nested/dir/tokenizer.json": json.dumps({"model": list(range(5000))}).encode(),
}


@pytest.fixture
def reg(tmp_path: Path):
    with opened_registry(tmp_path) as registry:
        yield registry


def count(reg: Registry, model: type) -> int:
    with reg.db.read() as session:
        return session.scalar(select(func.count()).select_from(model)) or 0


def test_odd_files_come_back_byte_for_byte(reg: Registry) -> None:
    revision = push_ingested(reg, caller(reg, "ann"), "ann/odd", ODD_FILES)
    for path, data in ODD_FILES.items():
        assert read_file(reg, revision, path) == data, path
    with reg.db.read() as session:
        files = {file.sha256: file for file in session.scalars(select(File))}
    assert all(file.state == "ingested" for file in files.values())
    kinds = {path: files[sha256_of(data)].kind for path, data in ODD_FILES.items()}
    assert kinds["gaps.safetensors"] == kinds["header-only.safetensors"] == "safetensors"
    assert kinds["lies.safetensors"] == kinds["cut.safetensors"] == "opaque"
    assert files[sha256_of(ODD_FILES["cut.safetensors"])].note
    assert files[sha256_of(ODD_FILES["tiny.txt"])].note is None


def test_small_files_and_recipes_of_a_revision_share_one_pack(reg: Registry) -> None:
    small = {f"file{i}.json": json.dumps(list(range(i, 900 + i))).encode() for i in range(6)}
    push_ingested(reg, caller(reg, "ann"), "ann/small", small)
    assert count(reg, Pack) == 1


def test_nothing_is_left_of_uploads_holds_and_scans(reg: Registry) -> None:
    push_ingested(reg, caller(reg, "ann"), "ann/odd", ODD_FILES)
    assert count(reg, Landing) == count(reg, Hold) == 0
    assert not list(reg.store.list("landing/"))
    assert not list(reg.scratch.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_finetune_of_a_trained_model_is_stored_as_its_difference(
    reg: Registry, dtype: torch.dtype
) -> None:
    ann = caller(reg, "ann")
    base = tiny_models.to_file(tiny_models.cast(tiny_models.base(), dtype))
    tuned = tiny_models.to_file(tiny_models.cast(tiny_models.finetune(1e-5), dtype))
    push_ingested(reg, ann, "ann/base", {"model.safetensors": base})
    revision = push_ingested(reg, ann, "ann/tuned", {"model.safetensors": tuned}, base="ann/base")
    assert read_file(reg, revision, "model.safetensors") == tuned
    stored = stored_tensors(reg, revision)
    large = [tensor for tensor in stored.values() if tensor.size > 100_000]
    assert large
    assert all(tensor.codec == "fm_delta" and tensor.depth == 1 for tensor in large)
    assert sum(t.stored_bytes for t in large) < 0.75 * sum(t.size for t in large)


def test_equal_tensors_are_stored_once_whatever_they_are_called(reg: Registry) -> None:
    ann = caller(reg, "ann")
    data = RANDOM[:20_000]
    one = safetensors({"a": ("F32", [50, 100], data), "b": ("F32", [5000], data)})
    two = safetensors({"c": ("BF16", [100, 100], data), "d": ("U8", [4], b"1234")})
    push_ingested(reg, ann, "ann/one", {"x.safetensors": one, "copy.safetensors": one})
    revision = push_ingested(reg, ann, "ann/two", {"x.safetensors": two})
    with reg.db.read() as session:
        assert session.scalar(select(func.count()).where(Tensor.size == len(data))) == 1
    assert read_file(reg, revision, "x.safetensors") == two


@pytest.mark.long
def test_ten_thousand_tensors_come_back(reg: Registry) -> None:
    tensors = {
        f"layers.{i}.scale": ("F32", [4], struct.pack("<4I", i, i * 7, 1 << 30, 5))
        for i in range(10_000)
    }
    data = safetensors(tensors)
    revision = push_ingested(reg, caller(reg, "ann"), "ann/many", {"m.safetensors": data})
    assert read_file(reg, revision, "m.safetensors") == data
    # Each tensor, the header's chunks and the recipe.
    assert count(reg, FileTensor) > 10_000
    assert count(reg, Pack) == 1


@pytest.mark.parametrize("dtype", sorted(HEADER_BITS))
def test_every_dtype_that_a_header_may_name_comes_back(reg: Registry, dtype: str) -> None:
    shape = [16, 24]
    data = RANDOM[: 16 * 24 * HEADER_BITS[dtype] // 8]
    file = safetensors({"w": (dtype, shape, data)})
    revision = push_ingested(reg, caller(reg, "ann"), "ann/m", {"m.safetensors": file})
    assert read_file(reg, revision, "m.safetensors") == file
    with reg.db.read() as session:
        assert session.scalars(select(File.kind)).one() == "safetensors"


def test_a_tensor_larger_than_a_pack_goes_over_several(tmp_path: Path) -> None:
    random = np.random.default_rng(1).bytes(5 << 20)
    file = safetensors({"w": ("BF16", [1280, 2048], random), "b": ("F32", [100], RANDOM[:400])})
    with opened_registry(tmp_path, pack_bytes=1 << 20) as reg:
        revision = push_ingested(reg, caller(reg, "ann"), "ann/m", {"m.safetensors": file})
        assert read_file(reg, revision, "m.safetensors") == file
        with reg.db.read() as session:
            sizes = session.scalars(select(Pack.size)).all()
            assert session.scalar(select(func.count()).select_from(Frame)) > 10
        assert len(sizes) > 5
        assert max(sizes) <= 1 << 20


class Stop(Exception):
    pass


def test_a_step_stopped_anywhere_leaves_the_file_readable_and_is_done_by_the_next_run(
    tmp_path: Path,
) -> None:
    files = {
        "m.safetensors": tiny_models.to_file(tiny_models.cast(tiny_models.base(), torch.bfloat16)),
        "a.txt": b"a" * 5000,
    }
    with opened_registry(tmp_path, pack_bytes=64 << 10) as reg:
        ann = caller(reg, "ann")
        job_id = push(reg, ann, "ann/m", files).job_id
        assert job_id is not None
        for n_calls in range(200):
            left = n_calls

            def stop(stage: str, done: int, total: int) -> None:
                nonlocal left
                if left == 0:
                    raise Stop
                left -= 1

            try:
                Ingest(reg, FileReader(reg), 1, job_id, report=stop).run()
                break
            except Stop:
                for path, data in files.items():
                    assert read_file(reg, 1, path) == data
        else:
            pytest.fail("ingest calls its callback without end")
        assert n_calls > 5
        assert not list(reg.scratch.glob("*.pack"))
        with reg.db.read() as session:
            assert set(session.scalars(select(File.state))) == {"ingested"}
        for path, data in files.items():
            assert read_file(reg, 1, path) == data


def test_an_upload_that_changed_on_the_disk_is_not_switched_to(reg: Registry) -> None:
    job_id = push(reg, caller(reg, "ann"), "ann/m", {"a.bin": RANDOM}).job_id
    assert job_id is not None
    with reg.db.read() as session:
        key = landing_key(session.scalars(select(Landing.id)).one())
    reg.store.put(key, [RANDOM[:-1] + b"?"])
    with pytest.raises(DataLost, match="damaged on the hub's disk"):
        Ingest(reg, FileReader(reg), 1, job_id).run()
    with reg.db.read() as session:
        assert session.scalars(select(File.state)).one() == "lost"
    reg.store.delete(key)
    with pytest.raises(DataLost):
        Ingest(reg, FileReader(reg), 1, job_id).run()


def test_two_jobs_that_share_files_do_not_disturb_each_other(reg: Registry) -> None:
    ann = caller(reg, "ann")
    files = {"a.bin": RANDOM, "b.txt": b"b" * 4000}
    first, second = (push(reg, ann, f"ann/{n}", files).job_id for n in ("one", "two"))
    assert first is not None
    assert second is not None
    one, two = Ingest(reg, FileReader(reg), 1, first), Ingest(reg, FileReader(reg), 2, second)
    for file_ids in two.pending_files():
        two.scan(file_ids)
    one.run()
    two.run()
    for revision in (1, 2):
        for path, data in files.items():
            assert read_file(reg, revision, path) == data


def test_the_first_job_finds_what_the_second_has_done_while_it_was_storing(reg: Registry) -> None:
    ann = caller(reg, "ann")
    files = {f"{i}.bin": RANDOM[i:] for i in range(4)}
    first, second = (push(reg, ann, f"ann/{n}", files).job_id for n in ("one", "two"))
    assert first is not None
    assert second is not None
    started = False

    def report(stage: str, done: int, total: int) -> None:
        nonlocal started
        if stage == "store" and not started:
            started = True
            Ingest(reg, FileReader(reg), 2, second).run()

    Ingest(reg, FileReader(reg), 1, first, report=report).run()
    assert started
    assert read_file(reg, 1, "3.bin") == RANDOM[3:]
    with reg.db.read() as session:
        assert set(session.scalars(select(File.state))) == {"ingested"}


def test_what_was_ingested_survives_a_loss_of_power(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    disk = DurableDisk(tmp_path / "data")
    with opened_registry(tmp_path, disk) as reg:
        revision = push_ingested(reg, caller(reg, "ann"), "ann/odd", ODD_FILES)
    disk.crash()
    with opened_registry(tmp_path, disk) as reg:
        for path, data in ODD_FILES.items():
            assert read_file(reg, revision, path) == data, path


def test_the_progress_tells_stages_and_bytes(reg: Registry) -> None:
    job_id = push(reg, caller(reg, "ann"), "ann/m", {"a.bin": RANDOM, "b.txt": b"b"}).job_id
    assert job_id is not None
    reports: list[tuple[str, int, int]] = []
    Ingest(reg, FileReader(reg), 1, job_id, report=lambda *each: reports.append(each)).run()
    assert [stage for stage, _, _ in reports] == sorted(
        (s for s, _, _ in reports), key="ssp".find
    ) or {stage for stage, _, _ in reports} == {"scan", "store", "prove"}
    assert all(0 < done <= total for _, done, total in reports)
    assert read_file(reg, 1, "a.bin") == RANDOM
    assert b"".join(FileReader(reg).stream_file(_only(reg, "b.txt"), 0, 1)) == b"b"


def _only(reg: Registry, _path: str) -> File:
    with reg.db.read() as session:
        return session.scalars(select(File).where(File.size == 1)).one()

"""The local index finds hashed files and tensors, and drops files that changed."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deltahub.client.local.index import FoundTensor, LocalIndex, PlacedTensor, Stamp

A, B = bytes([1]) * 32, bytes([2]) * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"x" * 100)
    return path


def stamp(path: Path) -> Stamp:
    return Stamp.of(path.stat())


def test_a_remembered_file_is_found_by_a_later_process(tmp_path: Path, file: Path) -> None:
    index = LocalIndex(tmp_path / "i" / "tensors.sqlite")
    placed = [PlacedTensor(A, 10, 40), PlacedTensor(B, 50, 50)]
    index.remember(file, stamp(file), sha256="ab", tensors=placed)
    index.close()

    later = LocalIndex(tmp_path / "i" / "tensors.sqlite")
    assert later.sha256_of(file, stamp(file)) == "ab"
    assert later.tensors_of(file, stamp(file)) == placed
    assert later.find([A, B, bytes(32)]) == {
        A: FoundTensor(str(file), 10, 40),
        B: FoundTensor(str(file), 50, 50),
    }
    later.close()


def test_a_file_that_was_written_to_is_forgotten(tmp_path: Path, file: Path) -> None:
    index = LocalIndex(tmp_path / "tensors.sqlite")
    index.remember(file, stamp(file), sha256="ab", tensors=[PlacedTensor(A, 0, 100)])
    old = stamp(file)
    os.utime(file, ns=(1, old.mtime_ns + 1))
    assert index.sha256_of(file, stamp(file)) is None
    assert index.find([A]) == {}
    # Also after the file has its old stamp again, because the row was deleted.
    os.utime(file, ns=(1, old.mtime_ns))
    assert index.find([A]) == {}
    index.close()


def test_a_deleted_file_is_forgotten_and_another_copy_is_found(tmp_path: Path, file: Path) -> None:
    index = LocalIndex(tmp_path / "tensors.sqlite")
    copy = tmp_path / "copy"
    copy.write_bytes(file.read_bytes())
    for path in (file, copy):
        index.remember(path, stamp(path), tensors=[PlacedTensor(A, 0, 100)])
    file.unlink()
    assert index.find([A]) == {A: FoundTensor(str(copy), 0, 100)}
    index.close()


def test_what_is_learned_later_is_added_to_what_is_known(tmp_path: Path, file: Path) -> None:
    index = LocalIndex(tmp_path / "tensors.sqlite")
    index.remember(file, stamp(file), sha256="ab")
    assert index.tensors_of(file, stamp(file)) is None
    index.remember(file, stamp(file), tensors=[])
    assert index.tensors_of(file, stamp(file)) == []
    assert index.sha256_of(file, stamp(file)) == "ab"
    index.close()


def test_a_damaged_index_is_begun_anew(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "tensors.sqlite"
    path.write_bytes(b"this is no database" * 1000)
    index = LocalIndex(path)
    index.remember(file, stamp(file), sha256="ab")
    assert index.sha256_of(file, stamp(file)) == "ab"
    index.close()


def test_thousands_of_tensors_are_looked_up_at_once(tmp_path: Path, file: Path) -> None:
    index = LocalIndex(tmp_path / "tensors.sqlite")
    ids = [i.to_bytes(32, "big") for i in range(1, 25_001)]
    placed = [PlacedTensor(each, i, 1) for i, each in enumerate(ids)]
    index.remember(file, stamp(file), tensors=placed)
    assert len(index.find(ids)) == 25_000
    index.close()


def test_a_new_index_is_opened_by_many_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(60):
            path = tmp_path / str(number) / "index.sqlite"
            start = threading.Barrier(8)

            def open_it(_: int, path: Path = path, start: threading.Barrier = start) -> None:
                start.wait()
                LocalIndex(path).close()

            list(pool.map(open_it, range(8)))

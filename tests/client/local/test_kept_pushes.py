"""Copies of the weights that were pushed last: what is kept, and what goes."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from deltahub.client.errors import InvalidArgument
from deltahub.client.local.hashing import index_file, sha256_of
from deltahub.client.local.index import LocalIndex, Stamp
from deltahub.client.local.kept_pushes import KeptPushes, PushedWeights

URL = "http://hub"
SIZE = 4096


@pytest.fixture
def index(tmp_path: Path) -> Iterator[LocalIndex]:
    index = LocalIndex(tmp_path / "index.sqlite")
    yield index
    index.close()


def write(path: Path, seed: int) -> None:
    """Weights of at least SIZE bytes, written through the same inode if the file is there."""
    values = np.random.default_rng(seed).normal(0, 1, SIZE // 4).astype(np.float32)
    save_file({"w": values}, path.with_suffix(".new"))
    with path.open("wb") as file:
        file.write(path.with_suffix(".new").read_bytes())


def pushed(path: Path, index: LocalIndex) -> PushedWeights:
    stamp = Stamp.of(path.stat())
    index_file(path, path.name, index)
    return PushedWeights(path, stamp, sha256_of(path, stamp, index))


def kept(home: Path) -> dict[str, bytes]:
    """SHA-256 -> bytes of every kept file."""
    folders = (home / "deltahub" / "pushed").glob("*/*")
    return {path.name: path.read_bytes() for path in folders}


def test_the_copy_keeps_its_bytes_when_the_file_is_written_over(
    tmp_path: Path, index: LocalIndex, home: Path
) -> None:
    path = tmp_path / "model.safetensors"
    write(path, 1)
    first, data = pushed(path, index), path.read_bytes()
    tensors = index.tensors_of(path, first.stamp)
    assert tensors is not None
    assert KeptPushes(index, URL, "ann/m", "main").keep([first], ()) == []
    write(path, 2)
    assert kept(home) == {first.sha256: data}
    found = index.find([tensors[0].tensor])
    assert found[tensors[0].tensor].path.endswith(first.sha256)


def test_only_the_last_push_of_a_branch_is_kept(
    tmp_path: Path, index: LocalIndex, home: Path
) -> None:
    main, other = (KeptPushes(index, URL, "ann/m", name) for name in ("main", "other"))
    files = []
    for seed in range(4):
        write(tmp_path / f"{seed}.safetensors", seed)
        files.append(pushed(tmp_path / f"{seed}.safetensors", index))
    main.keep([files[0], files[1]], ())
    other.keep([files[0]], ())
    main.keep([files[2]], {files[1].sha256})  # a push of one shard
    assert len(kept(home)) == 3
    main.keep([], ())  # a push of a README
    assert kept(home).keys() == {each.sha256 for each in files[:3]}
    main.keep([files[3]], ())
    assert kept(home).keys() == {files[0].sha256, files[3].sha256}


def test_the_branches_that_were_pushed_to_longest_ago_go_first(
    tmp_path: Path, index: LocalIndex, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTAHUB_KEPT_PUSHES_BYTES", str(2 * SIZE + 1000))
    files = []
    for seed in range(4):
        write(tmp_path / f"{seed}.safetensors", seed)
        files.append(pushed(tmp_path / f"{seed}.safetensors", index))
        assert KeptPushes(index, URL, "ann/m", f"b{seed}").keep([files[-1]], ()) == []
        folder = max((home / "deltahub" / "pushed").glob("*/"), key=lambda at: at.stat().st_mtime)
        os.utime(folder, (1000 + seed, 1000 + seed))
    assert kept(home).keys() == {each.sha256 for each in files[2:]}


def test_what_is_larger_than_the_limit_is_said_and_not_kept(
    tmp_path: Path, index: LocalIndex, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.safetensors", 1)
    file = pushed(tmp_path / "a.safetensors", index)
    monkeypatch.setenv("DELTAHUB_KEPT_PUSHES_BYTES", "1000")
    (told,) = KeptPushes(index, URL, "ann/m", "main").keep([file], ())
    assert "DELTAHUB_KEPT_PUSHES_BYTES allows (1000 bytes)" in told
    assert not kept(home)


def test_nothing_is_kept_if_the_setting_says_so(
    tmp_path: Path, index: LocalIndex, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.safetensors", 1)
    file = pushed(tmp_path / "a.safetensors", index)
    KeptPushes(index, URL, "ann/m", "main").keep([file], ())
    assert kept(home)
    monkeypatch.setenv("DELTAHUB_KEPT_PUSHES_BYTES", "0")
    KeptPushes(index, URL, "ann/m", "main").keep([file], ())
    assert not kept(home)
    monkeypatch.setenv("DELTAHUB_KEPT_PUSHES_BYTES", "much")
    with pytest.raises(InvalidArgument, match="'much', which is no number of bytes"):
        KeptPushes(index, URL, "ann/m", "main")


def test_a_file_that_changed_after_the_push_is_not_kept(
    tmp_path: Path, index: LocalIndex, home: Path
) -> None:
    path = tmp_path / "a.safetensors"
    write(path, 1)
    file = pushed(path, index)
    stat = path.stat()
    write(path, 2)
    (told,) = KeptPushes(index, URL, "ann/m", "main").keep([file], ())
    assert "written to after it was pushed" in told
    # Also if its time and size say that it did not change.
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert Stamp.of(path.stat()) == file.stamp
    KeptPushes(index, URL, "ann/m", "main").keep([file], ())
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in kept(home).items())


def test_a_lost_index_finds_the_copies_again(tmp_path: Path, index: LocalIndex) -> None:
    path = tmp_path / "a.safetensors"
    write(path, 1)
    file = pushed(path, index)
    tensors = index.tensors_of(path, file.stamp)
    assert tensors is not None
    KeptPushes(index, URL, "ann/m", "main").keep([file], ())
    path.unlink()
    other = LocalIndex(tmp_path / "new.sqlite")
    KeptPushes(other, URL, "ann/m", "main").index_files()
    assert tensors[0].tensor in other.find([tensors[0].tensor])
    other.close()

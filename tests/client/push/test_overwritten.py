"""A trainer that writes each checkpoint over the one before pushes the steps all the same."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from deltahub.client import Hub
from deltahub.client.push import packs
from support.models.model_folders import contents


def checkpoints(n: int) -> list[bytes]:
    rng = np.random.default_rng(1)
    weights = rng.normal(0, 0.02, (600, 512)).astype(np.float32)
    found = []
    for _ in range(n):
        found.append(save({"w": weights}))
        weights = weights + rng.normal(0, 1e-5, weights.shape).astype(np.float32)
    return found


def test_a_checkpoint_that_was_written_over_the_last_is_pushed_as_its_step(
    hub: Hub, name: str, tmp_path: Path, other_machine: Callable[[], Path]
) -> None:
    path, commits, sent = tmp_path / "run" / "model.safetensors", [], []
    path.parent.mkdir()
    for data in checkpoints(4):
        with path.open("wb") as file:  # the same inode each time
            file.write(data)
        pushed = hub.push(path.parent, name)
        commits.append((pushed.commit, data))
        sent.append(pushed.sent)
    assert max(sent[1:]) < 0.5 * sent[0]
    other_machine()
    for commit, data in commits:
        pulled = hub.pull(name, revision=commit, sha256=True)
        assert contents(pulled)["model.safetensors"] == data


def test_a_kept_copy_with_wrong_bytes_is_no_base(
    hub: Hub, name: str, tmp_path: Path, home: Path, other_machine: Callable[[], Path]
) -> None:
    first, second = checkpoints(2)
    path = tmp_path / "run" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(first)
    hub.push(path.parent, name)
    path.write_bytes(second)
    (kept,) = (home / "deltahub" / "pushed").glob("*/*")
    times = kept.stat().st_atime_ns, kept.stat().st_mtime_ns
    with kept.open("r+b") as file:
        file.seek(-1000, 2)
        file.write(b"damage")
    os.utime(kept, ns=times)  # so that the index believes in it
    hub.push(path.parent, name)
    other_machine()
    assert contents(hub.pull(name, sha256=True))["model.safetensors"] == second


def test_a_base_that_is_deleted_during_the_push_costs_bytes_only(
    hub: Hub, name: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = checkpoints(2)
    path = tmp_path / "run" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(first)
    hub.push(path.parent, name)
    path.write_bytes(second)
    encode_all = packs.encode_all

    def delete_first(choices, sources):  # type: ignore[no-untyped-def]
        sources.close()
        for kept in (home / "deltahub" / "pushed").glob("*/*"):
            kept.unlink()
        return encode_all(choices, sources)

    monkeypatch.setattr(packs, "encode_all", delete_first)
    assert hub.push(path.parent, name).state == "proved"
    assert contents(hub.pull(name, to=tmp_path / "to"))["model.safetensors"] == second

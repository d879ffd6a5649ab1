"""A pull gives no file its name before its SHA-256 was checked, and says what is wrong."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deltahub.client import Hub, VerificationFailed
from deltahub.client.api.recipes import StoredRecipe, read_recipe
from deltahub.client.pull import pull as pulls
from deltahub.codecs.files.recipe import Recipe, TensorRef
from support.models import tiny_models as tiny
from support.models.model_folders import contents, write_model


@pytest.fixture
def pushed(hub: Hub, name: str, tmp_path: Path) -> Path:
    """A pushed model with two tensors of one shape, and without relatives on the hub."""
    tensors = tiny.cast(tiny.base(seed=9), torch.float32)
    twin = {f"twin.{key}": value * 2 for key, value in tensors.items()}
    folder = write_model(tmp_path / "model", tensors | twin)
    assert (folder / "model.safetensors").stat().st_size >= pulls.SMALL_FILE
    hub.push(folder, name)
    return folder


def with_two_tensors_swapped(recipe: Recipe) -> Recipe:
    """Another file of the same tensors."""
    segments = list(recipe.segments)
    places: dict[Any, int] = {}
    for i, ref in enumerate(segments):
        if not isinstance(ref, TensorRef):
            continue
        other = places.setdefault((ref.shape, ref.dtype), i)
        twin = segments[other]
        if isinstance(twin, TensorRef) and twin.tensor != ref.tensor:
            segments[other] = replace(twin, tensor=ref.tensor)
            segments[i] = replace(ref, tensor=twin.tensor)
            return replace(recipe, segments=tuple(segments))
    raise AssertionError("no two tensors have one shape")


@pytest.mark.parametrize("is_to", [True, False])
def test_right_tensors_in_the_wrong_places_are_no_file(
    hub: Hub,
    name: str,
    pushed: Path,
    tmp_path: Path,
    other_machine: Callable[[], Path],
    monkeypatch: pytest.MonkeyPatch,
    is_to: bool,
) -> None:
    def read_wrong(*args: Any) -> StoredRecipe:
        found = read_recipe(*args)
        return replace(found, recipe=with_two_tensors_swapped(found.recipe))

    machine = other_machine()
    with monkeypatch.context() as patch:
        patch.setattr(pulls, "read_recipe", read_wrong)
        with pytest.raises(VerificationFailed) as told:
            hub.pull(name, to=tmp_path / "to" if is_to else None)
    assert "model.safetensors is not written" in str(told.value)
    assert "another SHA-256 than was pushed" in str(told.value)
    large = [
        path
        for root in (machine, tmp_path / "to")
        for path in root.rglob("*")
        if path.is_file() and path.stat().st_size >= pulls.SMALL_FILE
    ]
    assert not [path for path in large if path.suffix != ".sqlite-wal"]
    assert contents(hub.pull(name)) == contents(pushed)


def test_damage_on_this_machine_after_a_tensor_came_is_found(
    hub: Hub,
    name: str,
    pushed: Path,
    other_machine: Callable[[], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = pulls._check_hashes

    def damage_first(fd: int, entry: Any, **options: Any) -> None:
        if entry.size >= pulls.SMALL_FILE:
            os.pwrite(fd, b"damage", entry.size // 2)
        check(fd, entry, **options)

    other_machine()
    with monkeypatch.context() as patch:
        patch.setattr(pulls, "_check_hashes", damage_first)
        with pytest.raises(VerificationFailed, match="is not written"):
            hub.pull(name)
    assert contents(hub.pull(name)) == contents(pushed)


def test_a_copy_here_that_was_damaged_is_replaced(hub: Hub, name: str, pushed: Path) -> None:
    file = (hub.pull(name) / "model.safetensors").resolve()
    stat = file.stat()
    with file.open("r+b") as opened:
        opened.seek(stat.st_size // 2)
        opened.write(b"damage")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # so that it looks unchanged
    assert contents(hub.pull(name, sha256=True)) == contents(pushed)

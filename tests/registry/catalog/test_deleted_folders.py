"""Folders that a commit deletes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.commit import AddFile, DeleteFile, DeleteFolder, Operation, commit
from deltahub.registry.errors import EntryNotFound
from support.registry.commits import NAME, files
from support.registry.opened import caller, opened_registry, push, upload


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def test_a_folder_goes_with_what_the_same_commit_added_to_it_before(
    reg: Registry, alice: Caller
) -> None:
    names = ["a/x", "a/b/y", "a-b/z", "a.txt", "a0", "ab/c", "d/e"]
    push(reg, alice, NAME, {name: name.encode() for name in names})
    new = upload(reg, alice, b"new")
    operations: list[Operation] = [
        AddFile("a/new", new, 3),
        DeleteFile("d/e"),
        AddFile("d/f", new, 3),
        DeleteFolder("a"),
        DeleteFolder("d"),
        AddFile("d/g", new, 3),
    ]
    commit(reg, alice, NAME, "main", operations)
    assert set(files(reg, "main")) == {"a-b/z", "a.txt", "a0", "ab/c", "d/g"}


def test_a_folder_without_a_file_is_no_folder(reg: Registry, alice: Caller) -> None:
    push(reg, alice, NAME, {"a/b/c": b"1", "d": b"2"})
    for operations in (
        [DeleteFolder("d")],
        [DeleteFolder("b")],
        [DeleteFolder("a"), DeleteFolder("a/b")],
        [DeleteFile("a/b/c"), DeleteFolder("a")],
    ):
        with pytest.raises(EntryNotFound, match="no folder"):
            commit(reg, alice, NAME, "main", operations)
    assert set(files(reg, "main")) == {"a/b/c", "d"}


def test_an_empty_repository_loses_the_folder_that_its_first_commit_adds(
    reg: Registry, alice: Caller
) -> None:
    push(reg, alice, NAME, {"kept": b"1"})
    new = upload(reg, alice, b"new")
    commit(reg, alice, NAME, "main", [DeleteFile("kept"), AddFile("z", new, 3)])
    commit(reg, alice, NAME, "main", [AddFile("a/b", new, 3), DeleteFolder("a")])
    assert set(files(reg, "main")) == {"z"}

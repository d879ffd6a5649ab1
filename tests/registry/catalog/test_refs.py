"""Branches and tags: creating, deleting, and that no name is both."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import select, update

from deltahub.registry import Caller, Registry
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.refs import KINDS, PAGE_REFS, create_ref, ref_pages
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import Ref
from deltahub.registry.errors import (
    Conflict,
    InvalidName,
    InvalidRequest,
    RepositoryNotFound,
    RevisionNotFound,
)
from deltahub.registry.retention.drop import delete_ref
from support.registry.commits import NAME, files, revision
from support.registry.opened import caller, opened_registry, push, sha256_of


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def test_refs_are_made_listed_and_removed(reg: Registry, alice: Caller) -> None:
    head = push(reg, alice, NAME, {"a": b"1"}).commit
    create_ref(reg, alice, NAME, "tag", "v1", head[:8])
    with pytest.raises(Conflict):
        create_ref(reg, alice, NAME, "tag", "v1", "main")
    with reg.db.read() as session:
        repository = load_repository(session, None, NAME)
    refs = [ref for kind in KINDS for page in ref_pages(reg, repository, kind) for ref in page]
    assert [(r.kind, r.name, r.commit) for r in refs] == [
        ("branch", "main", head),
        ("tag", "v1", head),
    ]
    delete_ref(reg, alice, NAME, "tag", "v1")
    with pytest.raises(RevisionNotFound):
        delete_ref(reg, alice, NAME, "tag", "v1")
    with pytest.raises(InvalidRequest, match="cannot be removed"):
        delete_ref(reg, alice, NAME, "branch", "main")
    for wrong in ("", "a..b", "/a", "a/", "a//b", "a b", "-a", "x.lock", "0" * 40, "x" * 251):
        with pytest.raises(InvalidName):
            create_ref(reg, alice, NAME, "tag", wrong, "main")


def test_more_refs_than_a_page_has_are_listed_once_each(reg: Registry, alice: Caller) -> None:
    push(reg, alice, NAME, {"a": b"1"})
    with reg.db.write() as session:
        repository = load_repository(session, None, NAME)
        (head,) = session.scalars(select(Ref.revision_id))
        names = [f"v{number:05}" for number in range(2 * PAGE_REFS)]
        session.add_all(
            Ref(repository_id=repository.id, kind="tag", name=name, revision_id=head)
            for name in names
        )
    pages = list(ref_pages(reg, repository, "tag"))
    assert [ref.name for page in pages for ref in page] == names
    listed = ref_pages(reg, repository, "tag")
    next(listed)
    delete_repository(reg, alice, NAME)
    with pytest.raises(RepositoryNotFound):
        next(listed)


def test_a_name_is_a_branch_or_a_tag_and_never_both(reg: Registry, alice: Caller) -> None:
    first = push(reg, alice, NAME, {"a": b"1"}).commit
    create_ref(reg, alice, NAME, "tag", "t1", "main")
    create_ref(reg, alice, NAME, "branch", "dev", "main")
    second = push(reg, alice, NAME, {"a": b"2"}).commit
    with pytest.raises(Conflict, match="t1 is a tag of alice/model; a branch cannot have its name"):
        create_ref(reg, alice, NAME, "branch", "t1", "main")
    with pytest.raises(Conflict, match="dev is a branch of alice/model; a tag cannot have its nam"):
        create_ref(reg, alice, NAME, "tag", "dev", "main")
    with pytest.raises(InvalidRequest, match="main is the default branch; a tag cannot have its"):
        create_ref(reg, alice, NAME, "tag", "main", "main")
    for parent in (None, first, second):
        with pytest.raises(Conflict, match="t1 is a tag of alice/model, which stays where it is"):
            push(reg, alice, NAME, {"a": b"3"}, ref="t1", expected_parent=parent)
    assert files(reg, "t1") == {"a": sha256_of(b"1")}
    delete_ref(reg, alice, NAME, "tag", "t1")
    assert create_ref(reg, alice, NAME, "branch", "t1", "main").commit == second


def test_of_a_branch_and_a_tag_from_before_the_tag_is_read(reg: Registry, alice: Caller) -> None:
    first = push(reg, alice, NAME, {"a": b"1"}).commit
    for name in ("v1", "main"):
        create_ref(reg, alice, NAME, "branch", "x", "main")
        with reg.db.write() as session:  # as older releases allowed it
            tag = update(Ref).where(Ref.name == "x").values(kind="tag", name=name)
            session.execute(tag)
    second = push(reg, alice, NAME, {"a": b"2"}).commit
    create_ref(reg, alice, NAME, "branch", "x", "main")
    with reg.db.write() as session:
        session.execute(update(Ref).where(Ref.name == "x").values(name="v1"))
    assert revision(reg, rev="v1").commit == first
    assert revision(reg, rev="refs/tags/v1").commit == first
    assert revision(reg, rev="refs/heads/v1").commit == second
    # For main, which clients without a revision read, the branch wins.
    assert revision(reg, rev="main").commit == second
    assert push(reg, alice, NAME, {"a": b"3"}).changed
    with pytest.raises(Conflict, match="v1 is a tag"):
        push(reg, alice, NAME, {"a": b"3"}, ref="v1")
    delete_ref(reg, alice, NAME, "branch", "v1")
    assert revision(reg, rev="v1").commit == first


def test_of_a_branch_and_a_tag_made_at_once_there_is_one(reg: Registry, alice: Caller) -> None:
    push(reg, alice, NAME, {"a": b"1"})

    def make(kind: str, name: str) -> bool:
        try:
            create_ref(reg, alice, NAME, kind, name, "main")
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        for turn in range(10):
            made = [pool.submit(make, kind, f"r{turn}") for kind in ("branch", "tag")]
            assert sorted(each.result() for each in made) == [False, True]

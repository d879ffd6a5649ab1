"""Making, finding, listing and deleting repositories."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from deltahub.registry import Caller, Registry
from deltahub.registry.access import audit
from deltahub.registry.catalog.lists.search import list_repositories
from deltahub.registry.catalog.repositories import (
    create_repository,
    delete_repository,
    get_repository,
    move_repository,
)
from deltahub.registry.db.models import Base, File, LineageEdge, Ref, Repository, Revision
from deltahub.registry.db.tables.trees import TreeEntry
from deltahub.registry.errors import (
    Forbidden,
    InvalidName,
    InvalidRequest,
    RepositoryExists,
    RepositoryNotFound,
)
from deltahub.registry.jobs import queue, requests
from support.registry.opened import caller, opened_registry, push


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def n_rows(reg: Registry, model: type[Base]) -> int:
    with reg.db.read() as session:
        return session.scalar(select(func.count()).select_from(model)) or 0


def test_a_new_repository_is_public_and_empty(reg: Registry, alice: Caller) -> None:
    made = create_repository(reg, alice, "alice/model", role="base")
    assert (made.name, made.is_private, made.role, made.head) == (
        "alice/model",
        False,
        "base",
        None,
    )
    assert get_repository(reg, alice, "alice/model") == made


def test_names_that_an_older_release_let_differ_in_case_alone_stay_apart(
    reg: Registry, alice: Caller
) -> None:
    lower, upper = (push(reg, alice, name, {"a": name.encode()}) for name in ("alice/m", "alice/n"))
    with reg.db.write() as session:  # as the release before made it
        session.execute(update(Repository).where(Repository.name == "n").values(name="M"))
    assert get_repository(reg, alice, "alice/m").head == lower.commit
    assert get_repository(reg, alice, "alice/M").head == upper.commit
    assert get_repository(reg, alice, "ALICE/M").head == upper.commit
    for kept, gone in (("m", "M"), ("M", "m")):
        with pytest.raises(RepositoryExists, match=f"alice/{gone} exists already"):
            move_repository(reg, alice, f"alice/{kept}", f"alice/{gone}")
    with pytest.raises(RepositoryExists):
        create_repository(reg, alice, "alice/m")
    move_repository(reg, alice, "alice/M", "alice/other")
    assert get_repository(reg, alice, "alice/m").head == lower.commit
    assert get_repository(reg, alice, "alice/M").head == lower.commit  # no other is spelt so now


def test_a_spelling_that_two_repositories_share_is_neither(reg: Registry, alice: Caller) -> None:
    for name in ("alice/Model", "alice/x"):
        create_repository(reg, alice, name)
    with reg.db.write() as session:
        session.execute(update(Repository).where(Repository.name == "x").values(name="model"))
    with pytest.raises(RepositoryNotFound, match="alice/MODEL"):
        get_repository(reg, alice, "alice/MODEL")


def test_a_name_is_given_once(reg: Registry, alice: Caller) -> None:
    create_repository(reg, alice, "alice/model")
    with pytest.raises(RepositoryExists, match="alice/model"):
        create_repository(reg, alice, "alice/model", private=True)


@pytest.mark.parametrize(
    "name", ["", "model", "alice/", "/model", "alice/a/b", "alice/.git", "alice/a b", "alice/x.git"]
)
def test_a_name_that_cannot_be_one_is_refused(reg: Registry, alice: Caller, name: str) -> None:
    with pytest.raises(InvalidName):
        create_repository(reg, alice, name)
    with pytest.raises(InvalidName):
        get_repository(reg, alice, name)


def test_a_repository_says_what_the_caller_may_do_with_it(reg: Registry, alice: Caller) -> None:
    made = create_repository(reg, alice, "alice/model")
    reader = caller(reg, "alice", scope="read")
    root = caller(reg, "root", is_admin=True)
    shown = [
        get_repository(reg, who, "alice/model").caller_role
        for who in (alice, reader, root, caller(reg, "bob"), None)
    ]
    assert [made.caller_role, *shown] == ["admin", "admin", "read", "admin", "read", "read"]
    (listed,) = list_repositories(reg, alice).items
    assert listed.caller_role == "admin"


def test_an_unknown_role_is_refused(reg: Registry, alice: Caller) -> None:
    with pytest.raises(InvalidRequest, match="one of base, finetune"):
        create_repository(reg, alice, "alice/model", role="toy")


def test_pages_of_a_list_hold_every_repository_once_newest_first(
    reg: Registry, alice: Caller
) -> None:
    names = [create_repository(reg, alice, f"alice/m{n}").name for n in range(7)]
    found: list[str] = []
    cursor = None
    while True:
        page = list_repositories(reg, None, limit=3, cursor=cursor)
        found += [item.name for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == names[::-1]


def test_a_list_is_narrowed_by_namespace_and_by_part_of_the_name(
    reg: Registry, alice: Caller
) -> None:
    bob = caller(reg, "bob")
    create_repository(reg, alice, "alice/Llama-1")
    create_repository(reg, alice, "alice/per_cent")
    create_repository(reg, bob, "bob/llama-2")

    def names(namespace: str | None = None, search: str | None = None) -> list[str]:
        page = list_repositories(reg, None, namespace, search)
        return [item.name for item in page.items]

    assert names(search="LLAMA") == ["bob/llama-2", "alice/Llama-1"]
    assert names("alice", "llama") == ["alice/Llama-1"]
    assert names(search="bob/l") == ["bob/llama-2"]
    assert names(search="r_c") == ["alice/per_cent"]
    assert names(search="%") == []
    assert names("nobody") == []


@pytest.mark.parametrize(("limit", "cursor"), [(0, None), (1001, None), (5, "x"), (5, "9" * 30)])
def test_a_page_that_cannot_be_is_refused(reg: Registry, limit: int, cursor: str | None) -> None:
    with pytest.raises(InvalidRequest):
        list_repositories(reg, None, limit=limit, cursor=cursor)


def test_deleting_removes_every_name_and_leaves_the_files_to_garbage_collection(
    reg: Registry, alice: Caller
) -> None:
    push(reg, alice, "alice/base", {"a.bin": b"base"})
    push(reg, alice, "alice/model", {"a.bin": b"one", "b.bin": b"two"}, base="alice/base")
    push(reg, alice, "alice/model", {"a.bin": b"three"})
    push(reg, alice, "alice/other", {"a.bin": b"base"}, base="alice/model")
    assert n_rows(reg, LineageEdge) == 3  # the second revision keeps the base of the first
    delete_repository(reg, alice, "alice/model")
    with pytest.raises(RepositoryNotFound):
        get_repository(reg, alice, "alice/model")
    left = {m.__tablename__: n_rows(reg, m) for m in (Repository, Revision, Ref, TreeEntry, File)}
    assert left == {"repositories": 2, "revisions": 2, "refs": 2, "tree_entries": 2, "files": 4}
    assert n_rows(reg, LineageEdge) == 0
    with reg.db.read() as session:
        assert audit.latest(session)[0].action == "repository.delete"
        bases = session.scalars(select(Revision.declared_base).order_by(Revision.id)).all()
    assert bases == [None, "alice/model"]


def test_jobs_of_a_deleted_repository_are_cancelled_or_asked_to_stop(
    reg: Registry, alice: Caller
) -> None:
    first = push(reg, alice, "alice/model", {"a.bin": b"one"}).job_id
    second = push(reg, alice, "alice/model", {"a.bin": b"two"}).job_id
    assert first is not None
    assert second is not None
    with reg.db.write() as session:
        assert queue.mark_running(session, first)
    delete_repository(reg, alice, "alice/model")
    running, queued = (requests.get_job(reg, alice, job) for job in (first, second))
    assert (running.state, running.is_cancel_asked) == ("running", True)
    assert (queued.state, queued.error) == ("cancelled", "its repository was deleted meanwhile")
    with reg.db.write() as session:
        assert not queue.mark_running(session, second)
        assert queue.mark_cancelled(session, first)
    stopped = requests.get_job(reg, alice, first)
    assert (stopped.state, stopped.error_code) == ("cancelled", "repository_not_found")


def test_deleting_needs_the_role_admin(reg: Registry, alice: Caller) -> None:
    create_repository(reg, alice, "alice/model")
    with pytest.raises(Forbidden):
        delete_repository(reg, caller(reg, "bob"), "alice/model")
    assert get_repository(reg, None, "alice/model").name == "alice/model"


def test_a_deleted_name_can_be_given_again(reg: Registry, alice: Caller) -> None:
    push(reg, alice, "alice/model", {"a.bin": b"one"})
    delete_repository(reg, alice, "alice/model")
    assert create_repository(reg, alice, "alice/model", private=True).head is None

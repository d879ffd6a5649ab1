"""What no branch or tag reaches cannot be read, can be taken back, and is freed after a grace."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete

from deltahub.registry import Caller, Registry
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.access.visibility import readable_files
from deltahub.registry.catalog.entries import used_storage
from deltahub.registry.catalog.refs import create_ref
from deltahub.registry.db.models import File, LineageEdge, Ref, Revision
from deltahub.registry.db.tables.retention import DroppedRevision
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Conflict, Forbidden, RevisionNotFound
from deltahub.registry.ingest.make_public import make_public
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.retention.drop import delete_ref, sweep
from deltahub.registry.retention.take_back import list_dropped, take_back
from support.registry.collecting import collect, count, is_clean
from support.registry.commits import NAME, files, revision
from support.registry.histories import committed, ingest_all, read
from support.registry.opened import caller, opened_registry, push, sha256_of

SECRET = b"a password" * 2000


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


@pytest.fixture
def secret(reg: Registry, alice: Caller) -> str:
    """The commit of a branch `oops` with a secret, ingested, on top of main."""
    first = committed(reg, alice, {"a": b"1"})
    return committed(reg, alice, {"s": SECRET}, ref="oops", expected_parent=first)


def may_use(reg: Registry, who: Caller | None, sha256: str) -> bool:
    with reg.db.read() as session:
        repository = load_repository(session, who, NAME)
        return bool(readable_files(session, who, repository, [sha256]))


def test_what_a_removed_branch_had_is_unreadable_at_once(
    reg: Registry, alice: Caller, secret: str
) -> None:
    assert may_use(reg, None, sha256_of(SECRET))
    assert delete_ref(reg, alice, NAME, "branch", "oops") == 1
    for name in (secret, secret[:10], "oops"):
        with pytest.raises(RevisionNotFound):
            revision(reg, rev=name)
    for who in (None, alice):
        assert not may_use(reg, who, sha256_of(SECRET))
    assert files(reg) == {"a": sha256_of(b"1")}
    with reg.db.read() as session:
        assert used_storage(session, load_repository(session, alice, NAME)).n_bytes == 1
    assert is_clean(reg)


def test_a_revision_that_something_else_reaches_stays(
    reg: Registry, alice: Caller, secret: str
) -> None:
    create_ref(reg, alice, NAME, "tag", "v1", secret)
    assert delete_ref(reg, alice, NAME, "branch", "oops") == 0
    assert files(reg, "v1")["s"] == sha256_of(SECRET)
    create_ref(reg, alice, NAME, "branch", "later", "v1")
    push(reg, alice, NAME, {"b": b"2"}, ref="later")
    assert delete_ref(reg, alice, NAME, "tag", "v1") == 0
    assert delete_ref(reg, alice, NAME, "branch", "later") == 2


def test_it_is_taken_back_with_its_ancestors(reg: Registry, alice: Caller, secret: str) -> None:
    later = committed(reg, alice, {"b": b"2"}, ref="oops")
    delete_ref(reg, alice, NAME, "branch", "oops")
    assert [each.commit for each in list_dropped(reg, alice, NAME)] == [later, secret]
    bob = caller(reg, "bob")
    for do in (lambda: list_dropped(reg, bob, NAME), lambda: take_back(reg, bob, NAME, later, "x")):
        with pytest.raises(Forbidden):
            do()
    with pytest.raises(Conflict, match="branch main already"):
        take_back(reg, alice, NAME, later, "main")
    assert take_back(reg, alice, NAME, later, "again").commit == later
    assert revision(reg, rev=later).parent_commit == secret
    assert revision(reg, rev=secret).number == 2
    ingest_all(reg)
    assert read(reg, "s", "again") == SECRET
    assert list_dropped(reg, alice, NAME) == []
    with pytest.raises(RevisionNotFound, match="never dropped"):
        take_back(reg, alice, NAME, later, "twice")
    assert is_clean(reg)


def test_gc_keeps_it_for_the_grace_and_says_why_its_bytes_go(
    reg: Registry, alice: Caller, secret: str
) -> None:
    delete_ref(reg, alice, NAME, "branch", "oops")
    collect(reg)
    assert count(reg, DroppedRevision) == 1
    waiting = {each.what: each.count for each in plan_gc(reg, lease_s=0, grace_s=0).waiting}
    assert waiting["dropped revisions that can be taken back"] == 1
    take_back(reg, alice, NAME, secret, "oops")
    assert read(reg, "s", "oops") == SECRET
    delete_ref(reg, alice, NAME, "branch", "oops")
    plan = plan_gc(reg, lease_s=0, grace_s=0, revision_grace_s=0)
    assert plan.reasons["ref removed"] > 0
    assert len(plan.revisions) == 1
    assert collect(reg, revision_grace_s=0).revisions == 1
    with reg.db.read() as session:
        assert session.query(File).where(File.sha256 == sha256_of(SECRET)).count() == 0
    assert (count(reg, DroppedRevision), is_clean(reg)) == (0, True)
    with pytest.raises(RevisionNotFound, match="grace is over"):
        take_back(reg, alice, NAME, secret, "oops")


def test_after_the_grace_it_cannot_be_taken_back_even_before_gc(
    tmp_path: Path, alice: Caller, secret: str, reg: Registry
) -> None:
    delete_ref(reg, alice, NAME, "branch", "oops")
    with opened_registry(tmp_path, revision_grace_s=0) as strict:
        with pytest.raises(RevisionNotFound):
            take_back(strict, alice, NAME, secret, "oops")


def test_a_file_that_is_still_landed_comes_back(reg: Registry, alice: Caller) -> None:
    first = committed(reg, alice, {"a": b"1"})
    landed = push(reg, alice, NAME, {"s": SECRET}, ref="oops", expected_parent=first).commit
    delete_ref(reg, alice, NAME, "branch", "oops")
    ingest_all(reg)  # the job finds no revision, and ends well
    collect(reg)
    take_back(reg, alice, NAME, landed, "oops")
    ingest_all(reg)
    assert read(reg, "s", "oops") == SECRET


def test_what_was_dropped_while_private_is_not_made_public_in_passing(
    reg: Registry, alice: Caller
) -> None:
    first = committed(reg, alice, {"a": b"1"}, private=True)
    oops = committed(reg, alice, {"s": SECRET}, ref="oops", expected_parent=first)
    delete_ref(reg, alice, NAME, "branch", "oops")
    make_public(reg, FileReader(reg), alice, NAME)
    ingest_all(reg)
    with pytest.raises(Conflict, match="was private"):
        take_back(reg, alice, NAME, oops, "oops")
    assert not may_use(reg, None, sha256_of(SECRET))


def test_revisions_that_an_older_release_left_are_found(
    reg: Registry, alice: Caller, secret: str
) -> None:
    push(reg, alice, NAME, {"b": b"2"}, ref="oops")
    assert sweep(reg) == 0
    with reg.db.write() as session:
        session.execute(delete(Ref).where(Ref.name == "oops"))
    assert sweep(reg) == 2
    assert (sweep(reg), count(reg, Revision)) == (0, 1)


def test_a_model_made_from_a_dropped_revision_stays_whole(reg: Registry, alice: Caller) -> None:
    first = committed(reg, alice, {"a": b"1"})
    committed(reg, alice, {"s": SECRET}, ref="oops", expected_parent=first)
    tune = "alice/tune"
    committed(reg, alice, {"t": SECRET + b"!"}, tune, base=f"{NAME}@oops")
    assert count(reg, LineageEdge) == 1
    delete_ref(reg, alice, NAME, "branch", "oops")
    collect(reg, revision_grace_s=0)
    assert count(reg, LineageEdge) == 0
    assert read(reg, "t", name=tune) == SECRET + b"!"

"""Commits: contents of revisions, permissions, and two commits at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from deltahub.registry import Caller, Registry
from deltahub.registry.access import audit
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.commit import (
    AddFile,
    DeleteFile,
    Operation,
    commit,
    find_entry,
    list_entries,
)
from deltahub.registry.catalog.refs import create_ref
from deltahub.registry.catalog.repositories import create_repository, get_repository
from deltahub.registry.db.models import File, LineageEdge, Revision
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import (
    Conflict,
    EntryNotFound,
    Forbidden,
    InvalidPath,
    InvalidRequest,
    LimitExceeded,
    RefMoved,
    RevisionNotFound,
    SizeMismatch,
    Unauthorized,
    UploadNotFound,
)
from deltahub.registry.jobs import queue, requests
from support.registry.commits import NAME, add, files, revision
from support.registry.opened import caller, opened_registry, push, sha256_of, upload


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path, max_operations=50, max_entries=60) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def finish_ingest(reg: Registry) -> None:
    """Change the rows that commits read as an ingest would."""
    with reg.db.write() as session:
        session.execute(update(File).values(state="ingested", landing_id=None))
        session.execute(update(Job).values(state="done"))


def test_a_commit_adds_replaces_and_deletes(reg: Registry, alice: Caller) -> None:
    first = push(reg, alice, NAME, {"a": b"1", "b/c": b"2", "d": b"3"})
    operations: list[Operation] = [add(reg, alice, "a", b"one"), DeleteFile("d")]
    operations.append(add(reg, alice, "e", b"5"))
    second = commit(reg, alice, NAME, "main", operations, "second")
    assert files(reg) == {p: sha256_of(d) for p, d in
                          {"a": b"one", "b/c": b"2", "e": b"5"}.items()}  # fmt: skip
    assert files(reg, first.commit) == {p: sha256_of(d) for p, d in
                                        {"a": b"1", "b/c": b"2", "d": b"3"}.items()}  # fmt: skip
    row = revision(reg)
    assert (row.commit, row.parent_commit, row.message) == (second.commit, first.commit, "second")
    assert row.author_id == alice.user_id
    assert get_repository(reg, None, NAME).head == second.commit


def test_a_commit_is_40_hex_digits_and_resolved_by_any_of_its_names(
    reg: Registry, alice: Caller
) -> None:
    result = push(reg, alice, NAME, {"a": b"1"})
    create_ref(reg, alice, NAME, "tag", "v1", "main")
    create_ref(reg, alice, NAME, "branch", "dev/x", result.commit)
    names = ["main", "v1", "dev/x", "refs/heads/main", "refs/tags/v1", result.commit]
    for name in [*names, result.commit[:7], result.commit[:39]]:
        assert revision(reg, rev=name).commit == result.commit
    for name in ["v2", "refs/heads/v1", "refs/tags/main", result.commit[:6], "0" * 40, "", "Main"]:
        with pytest.raises(RevisionNotFound):
            revision(reg, rev=name)


def test_a_shortened_commit_that_several_share_is_not_found(reg: Registry, alice: Caller) -> None:
    create_repository(reg, alice, NAME)
    for n in (1, 2):
        operation = add(reg, alice, "a", b"%d" % n)
        commit(reg, alice, NAME, "main", [operation], commit_id="abcdef01" + str(n) * 32)
    with pytest.raises(RevisionNotFound, match="one match"):
        revision(reg, rev="abcdef01")
    assert revision(reg, rev="abcdef012").parent_commit == "abcdef01" + "1" * 32


def test_an_empty_repository_says_that_it_is_empty(reg: Registry, alice: Caller) -> None:
    create_repository(reg, alice, NAME)
    assert get_repository(reg, alice, NAME).head is None
    with pytest.raises(RevisionNotFound, match="nothing has been committed"):
        revision(reg)
    with pytest.raises(InvalidRequest, match="must add a file"):
        commit(reg, alice, NAME, "main", [])


def test_the_same_contents_make_no_new_revision(reg: Registry, alice: Caller) -> None:
    first = push(reg, alice, NAME, {"a": b"1", "b": b"2"})
    again = push(reg, alice, NAME, {"b": b"2"}, message="again")
    assert (again.commit, again.changed, again.unchanged) == (first.commit, False, True)
    assert again.job_id == first.job_id
    finish_ingest(reg)
    assert push(reg, alice, NAME, {"b": b"2"}).job_id is None


def test_a_new_base_of_the_same_contents_makes_a_revision(reg: Registry, alice: Caller) -> None:
    push(reg, alice, NAME, {"a": b"1"})
    assert push(reg, alice, NAME, {"a": b"1"}, base="alice/base").changed
    assert not push(reg, alice, NAME, {"a": b"1"}, base="alice/base").changed
    assert not push(reg, alice, NAME, {"a": b"1"}).changed
    assert declared(reg, NAME) == ("alice/base", None, 0)
    assert push(reg, alice, NAME, {"a": b"1"}, base="none").changed
    assert declared(reg, NAME) == (None, None, 0)
    assert not push(reg, alice, NAME, {"a": b"1"}, base="none").changed
    assert not push(reg, alice, NAME, {"a": b"1"}).changed


def test_new_files_are_ingested_by_one_job(reg: Registry, alice: Caller) -> None:
    result = push(reg, alice, NAME, {"a": b"1", "b": b"2"})
    assert result.job_id is not None
    job = requests.get_job(reg, alice, result.job_id)
    row = revision(reg)
    assert (job.kind, job.state, job.payload) == ("ingest", "queued", {"revision_id": row.id})
    assert (job.repository, row.ingest_job_id) == (NAME, job.id)
    finish_ingest(reg)
    assert commit(reg, alice, NAME, "main", [DeleteFile("b")]).job_id is None


def test_repeating_a_push_whose_ingest_failed_asks_for_it_again(
    reg: Registry, alice: Caller
) -> None:
    first = push(reg, alice, NAME, {"a": b"1"})
    assert first.job_id is not None
    with reg.db.write() as session:
        queue.mark_running(session, first.job_id)
        queue.mark_failed(session, first.job_id, "storage_full", "the disk is full")
    again = push(reg, alice, NAME, {"a": b"1"})
    assert not again.changed
    assert again.job_id not in (None, first.job_id)


def test_a_file_is_kept_once_for_all_public_repositories(reg: Registry, alice: Caller) -> None:
    bob = caller(reg, "bob")
    push(reg, alice, NAME, {"a": b"same"})
    push(reg, bob, "bob/model", {"b": b"same"})
    push(reg, bob, "bob/private", {"b": b"same"}, private=True)
    with reg.db.read() as session:
        assert (
            len(session.scalars(select(File)).all()) == 2
        )  # one in the public domain, one in bob's private domain


def test_a_private_repository_refers_to_a_public_file_without_an_upload(
    reg: Registry, alice: Caller
) -> None:
    push(reg, alice, NAME, {"a": b"public"})
    bob = caller(reg, "bob")
    create_repository(reg, bob, "bob/private", private=True)
    operation = AddFile("copy", sha256_of(b"public"), 6)
    commit(reg, bob, "bob/private", "main", [operation])
    assert files(reg, name="bob/private") == {"copy": sha256_of(b"public")}


def test_a_public_repository_does_not_refer_to_private_data(reg: Registry, alice: Caller) -> None:
    push(reg, alice, "alice/private", {"a": b"secret"}, private=True)
    with reg.db.write() as session:  # as when the upload has expired after its ingest
        session.execute(update(File).values(state="ingested", landing_id=None))
        session.connection().exec_driver_sql("DELETE FROM landings")
    create_repository(reg, alice, NAME)
    with pytest.raises(UploadNotFound):
        commit(reg, alice, NAME, "main", [AddFile("a", sha256_of(b"secret"), 6)])


def test_a_commit_needs_complete_uploads_of_the_announced_size(
    reg: Registry, alice: Caller
) -> None:
    create_repository(reg, alice, NAME)
    with pytest.raises(UploadNotFound, match=sha256_of(b"absent")):
        commit(reg, alice, NAME, "main", [AddFile("a", sha256_of(b"absent"), 6)])
    sha256 = upload(reg, alice, b"here")
    with pytest.raises(SizeMismatch, match="has 4 bytes, not 5"):
        commit(reg, alice, NAME, "main", [AddFile("a", sha256, 5)])
    assert get_repository(reg, alice, NAME).head is None


def test_an_unproved_file_becomes_committable_by_uploading_it(reg: Registry, alice: Caller) -> None:
    create_repository(reg, alice, NAME)
    with reg.db.write() as session:
        domain_id = load_repository(session, alice, NAME).domain_id
        session.add(File(domain_id=domain_id, sha256=sha256_of(b"x"), size=1, state="proving"))
    with pytest.raises(UploadNotFound):
        commit(reg, alice, NAME, "main", [AddFile("a", sha256_of(b"x"), 1)])
    push(reg, alice, NAME, {"a": b"x"})
    with reg.db.read() as session:
        file = session.scalars(select(File)).one()
    assert file.state == "landed"
    assert file.git_blob_id is not None


def test_only_writers_commit(reg: Registry, alice: Caller) -> None:
    create_repository(reg, alice, NAME)
    bob = caller(reg, "bob")
    operation = add(reg, bob, "a", b"1")
    with pytest.raises(Forbidden):
        commit(reg, bob, NAME, "main", [operation])
    with pytest.raises(Forbidden):
        commit(reg, caller(reg, "alice", scope="read"), NAME, "main", [operation])
    with pytest.raises(Unauthorized):
        commit(reg, None, NAME, "main", [operation])


def test_a_commit_on_a_moved_branch_is_refused(reg: Registry, alice: Caller) -> None:
    first = push(reg, alice, NAME, {"a": b"1"})
    second = push(reg, alice, NAME, {"a": b"2"}, expected_parent=first.commit)
    with pytest.raises(RefMoved, match=f"'main' is at '{second.commit}', not at"):
        push(reg, alice, NAME, {"a": b"3"}, expected_parent=first.commit)
    assert push(reg, alice, NAME, {"a": b"3"}).changed
    with pytest.raises(RefMoved, match="empty"):
        push(reg, alice, "alice/new", {"a": b"3"}, expected_parent=first.commit)


def test_a_branch_begins_at_the_named_parent(reg: Registry, alice: Caller) -> None:
    first = push(reg, alice, NAME, {"a": b"1"})
    push(reg, alice, NAME, {"a": b"2"})
    with pytest.raises(RevisionNotFound, match="name the commit"):
        push(reg, alice, NAME, {"b": b"3"}, ref="dev")
    push(reg, alice, NAME, {"b": b"3"}, ref="dev", expected_parent=first.commit)
    assert files(reg, "dev") == {"a": sha256_of(b"1"), "b": sha256_of(b"3")}
    assert files(reg, "main") == {"a": sha256_of(b"2")}


def test_a_branch_begins_anew_where_there_is_no_main_to_begin_at(
    reg: Registry, alice: Caller
) -> None:
    first = push(reg, alice, NAME, {"a": b"1"}, ref="v.1")
    assert push(reg, alice, NAME, {"b": b"2"}).commit != first.commit
    assert files(reg, "main") == {"b": sha256_of(b"2")}
    assert revision(reg, NAME, "main").parent_commit is None
    assert files(reg, "v.1") == {"a": sha256_of(b"1")}
    with pytest.raises(RevisionNotFound, match="name the commit"):
        push(reg, alice, NAME, {"b": b"3"}, ref="v.2")


def test_a_mirror_gives_the_commit_its_own_id(reg: Registry, alice: Caller) -> None:
    create_repository(reg, alice, NAME)
    upstream = "0123456789" * 4
    operation = add(reg, alice, "a", b"1")
    assert commit(reg, alice, NAME, "main", [operation], commit_id=upstream).commit == upstream
    other = add(reg, alice, "a", b"2")
    with pytest.raises(Conflict, match=upstream):
        commit(reg, alice, NAME, "main", [other], commit_id=upstream)
    with pytest.raises(InvalidRequest, match="40 lower-case"):
        commit(reg, alice, NAME, "main", [other], commit_id="HEAD")


def declared(reg: Registry, name: str, rev: str = "main") -> tuple[str | None, str | None, int]:
    """(declared base, the commit it is resolved to, number of declared edges)."""
    row = revision(reg, name, rev)
    with reg.db.read() as session:
        edges = session.scalars(select(LineageEdge).where(LineageEdge.child_id == row.id)).all()
        base_id = row.declared_base_revision_id
        base = None if base_id is None else session.get_one(Revision, base_id).commit
        assert all((e.origin, e.kind, e.parent_id) == ("declared", "finetune", base_id)
                   for e in edges)  # fmt: skip
        return row.declared_base, base, len(edges)


def test_a_declared_base_is_resolved_at_that_moment(reg: Registry, alice: Caller) -> None:
    first = push(reg, alice, "alice/base", {"a": b"1"}).commit
    push(reg, alice, "alice/tuned", {"a": b"2"}, base="alice/base")
    push(reg, alice, "alice/base", {"a": b"3"})
    push(reg, alice, "alice/pinned", {"a": b"4"}, base=f"alice/base@{first[:10]}")
    assert declared(reg, "alice/tuned") == ("alice/base", first, 1)
    assert declared(reg, "alice/pinned") == (f"alice/base@{first[:10]}", first, 1)


def test_a_revision_that_says_nothing_of_a_base_keeps_the_one_before_it(
    reg: Registry, alice: Caller
) -> None:
    first = push(reg, alice, "alice/base", {"a": b"1"}).commit
    tuned = push(reg, alice, "alice/tuned", {"a": b"2"}, base="alice/base").commit
    push(reg, alice, "alice/base", {"a": b"3"})
    push(reg, alice, "alice/tuned", {"a": b"4"})
    assert declared(reg, "alice/tuned") == ("alice/base", first, 1)
    push(reg, alice, "alice/tuned", {"a": b"5"}, ref="branch", expected_parent=tuned)
    assert declared(reg, "alice/tuned", "branch") == ("alice/base", first, 1)
    push(reg, alice, "alice/early", {"a": b"6"}, base="alice/later")
    later = push(reg, alice, "alice/later", {"a": b"7"}).commit
    push(reg, alice, "alice/early", {"a": b"8"})
    assert declared(reg, "alice/early") == ("alice/later", later, 1)
    push(reg, alice, "alice/tuned", {"a": b"9"}, base="none")
    assert declared(reg, "alice/tuned") == (None, None, 0)
    push(reg, alice, "alice/tuned", {"a": b"10"})
    assert declared(reg, "alice/tuned") == (None, None, 0)


def test_an_unreadable_base_is_treated_exactly_like_an_absent_one(
    reg: Registry, alice: Caller
) -> None:
    push(reg, caller(reg, "bob"), "bob/secret", {"a": b"1"}, private=True)
    for n, base in enumerate(["bob/secret", "bob/absent", "bert-base-uncased", "a/b@c@d", "é/ø"]):
        push(reg, alice, f"alice/m{n}", {"a": b"2"}, base=base)
        assert declared(reg, f"alice/m{n}") == (base, None, 0)
    for wrong in ("", "x" * 301, "a\nb"):
        with pytest.raises(InvalidRequest, match="is no base"):
            push(reg, alice, "alice/x", {"a": b"2"}, base=wrong)


def test_limits_are_said(reg: Registry, alice: Caller) -> None:
    create_repository(reg, alice, NAME)
    sha256 = upload(reg, alice, b"x")
    adds = [AddFile(f"f{n}", sha256, 1) for n in range(61)]
    with pytest.raises(LimitExceeded, match="at most 50 operations, not 51"):
        commit(reg, alice, NAME, "main", adds[:51])
    commit(reg, alice, NAME, "main", adds[:50])
    with pytest.raises(LimitExceeded, match="61 files; at most 60"):
        commit(reg, alice, NAME, "main", adds[50:])
    with pytest.raises(LimitExceeded, match="65536 bytes"):
        commit(reg, alice, NAME, "main", [], "x" * 65537)
    with pytest.raises(InvalidRequest, match="Unicode"):
        commit(reg, alice, NAME, "main", [], "\ud800")


def test_operations_that_contradict_are_refused(reg: Registry, alice: Caller) -> None:
    push(reg, alice, NAME, {"folder/a": b"1"})
    operation = add(reg, alice, "x", b"1")
    with pytest.raises(InvalidPath, match="two operations change 'x'"):
        commit(reg, alice, NAME, "main", [operation, DeleteFile("x")])
    with pytest.raises(EntryNotFound, match="'y'"):
        commit(reg, alice, NAME, "main", [DeleteFile("y")])
    with pytest.raises(InvalidPath, match="'folder' would be both"):
        commit(reg, alice, NAME, "main", [AddFile("folder", operation.sha256, 1)])
    with pytest.raises(InvalidPath, match="'folder/a' would be both"):
        commit(reg, alice, NAME, "main", [AddFile("folder/a/b/c", operation.sha256, 1)])


def test_a_revision_may_become_empty(reg: Registry, alice: Caller) -> None:
    push(reg, alice, NAME, {"a": b"1"})
    assert commit(reg, alice, NAME, "main", [DeleteFile("a")]).changed
    assert files(reg) == {}


def test_an_entry_is_found_by_path_with_the_etag_of_its_mode(reg: Registry, alice: Caller) -> None:
    push(reg, alice, NAME, {"README.md": b"hello\n", "model.safetensors": b"weights"})
    row = revision(reg)
    with reg.db.read() as session:
        readme = find_entry(session, row, "README.md")
        model = find_entry(session, row, "model.safetensors")
        with pytest.raises(EntryNotFound, match="absent"):
            find_entry(session, row, "absent")
        assert [entry.path for entry in list_entries(session, row)] == [
            "README.md",
            "model.safetensors",
        ]
    assert (readme.mode, readme.etag) == ("regular", "ce013625030ba8dba906f756967f9e9ca394464a")
    assert (model.mode, model.etag) == ("lfs", sha256_of(b"weights"))


def test_a_commit_is_in_the_audit_log(reg: Registry, alice: Caller) -> None:
    result = push(reg, alice, NAME, {"a": b"1"})
    with reg.db.read() as session:
        event = audit.latest(session)[0]
    assert (event.user_name, event.action) == ("alice", "revision.commit")
    assert event.target == f"{NAME}@{result.commit}"

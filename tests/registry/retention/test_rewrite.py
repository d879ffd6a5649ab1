"""Squashing a branch, and deleting files from all of history."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.entries import list_entries
from deltahub.registry.catalog.history import last_changes
from deltahub.registry.catalog.refs import create_ref
from deltahub.registry.catalog.trees.sums import Change
from deltahub.registry.db.models import File, LineageEdge, Revision
from deltahub.registry.errors import Conflict, Forbidden, RevisionNotFound
from deltahub.registry.retention.drop import delete_ref
from deltahub.registry.retention.rewrite import delete_files, squash
from deltahub.registry.retention.take_back import list_dropped, take_back
from support.registry.collecting import collect, count, is_clean
from support.registry.commits import NAME, files, revision
from support.registry.histories import committed, read
from support.registry.opened import caller, opened_registry, push, sha256_of


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def test_a_squashed_branch_has_one_commit_with_the_files_of_its_head(
    reg: Registry, alice: Caller
) -> None:
    commits = [committed(reg, alice, {f"{n}": b"%d" % n, "x": b"x%d" % n}) for n in range(3)]
    create_ref(reg, alice, NAME, "tag", "v1", commits[0])
    before = files(reg)
    made = squash(reg, alice, NAME, "main", "all in one")
    head = revision(reg)
    assert (head.commit, head.parent_commit, head.number) == (made, None, 3)
    assert (head.message, files(reg)) == ("all in one", before)
    changed = {path: Change(1, bytes(20)) for path in before}
    with reg.db.read() as session:
        entries = {each.path: each.changed for each in list_entries(session, head)}
        last = last_changes(session, head, changed | entries)
    assert {info.commit for info in last.values()} == {made}  # the tag has the others
    assert [each.commit for each in list_dropped(reg, alice, NAME)] == commits[:0:-1]
    assert files(reg, "v1") == {"0": sha256_of(b"0"), "x": sha256_of(b"x0")}
    collect(reg, revision_grace_s=0)
    assert [read(reg, path) for path in sorted(before)] == [b"0", b"1", b"2", b"x2"]
    assert is_clean(reg)
    assert push(reg, alice, NAME, {"y": b"y"}, expected_parent=made).changed


def test_models_made_from_a_squashed_head_are_made_from_the_new_one(
    reg: Registry, alice: Caller
) -> None:
    committed(reg, alice, {"a": b"1"})
    committed(reg, alice, {"a": b"2"})
    committed(reg, alice, {"a": b"3"}, "alice/tune", base=NAME)
    squash(reg, alice, NAME, "main", "one")
    assert revision(reg, "alice/tune").declared_base_revision_id == revision(reg).id
    with reg.db.read() as session:
        edge = session.query(LineageEdge).filter_by(origin="declared").one()
    assert (edge.child_id, edge.parent_id) == (revision(reg, "alice/tune").id, revision(reg).id)


def test_what_cannot_be_squashed_is_refused(reg: Registry, alice: Caller) -> None:
    committed(reg, alice, {"a": b"1"})
    create_ref(reg, alice, NAME, "tag", "v1", "main")
    with pytest.raises(RevisionNotFound, match="no branch"):
        squash(reg, alice, NAME, "other", "")
    with pytest.raises(Conflict, match="tag"):
        squash(reg, alice, NAME, "v1", "")
    with pytest.raises(Forbidden):
        squash(reg, caller(reg, "bob"), NAME, "main", "")
    assert count(reg, Revision) == 1


def test_a_deleted_file_is_in_no_revision_and_the_rest_is_as_before(
    reg: Registry, alice: Caller
) -> None:
    first = committed(reg, alice, {"a": b"1"}, message="first")
    second = committed(reg, alice, {"secret.bin": b"s" * 9000, "b": b"2"}, message="second")
    third = committed(reg, alice, {"c": b"3"}, message="third")
    create_ref(reg, alice, NAME, "tag", "v2", second)
    side = committed(reg, alice, {"d": b"4"}, ref="side", expected_parent=first)
    committed(reg, alice, {"copy.bin": b"s" * 9000}, "alice/other")
    old = revision(reg, rev=third)
    sha256 = sha256_of(b"s" * 9000)
    assert delete_files(reg, alice, NAME, [sha256, "0" * 64]) == [sha256]
    new = revision(reg)
    assert {"a", "b", "c"} == set(files(reg))
    assert {"a", "b"} == set(files(reg, "v2"))
    assert (new.message, new.created_at, new.number) == ("third", old.created_at, 3)
    assert new.parent_commit == revision(reg, rev="v2").commit
    assert revision(reg, rev="v2").parent_commit == first
    assert revision(reg, rev="side").commit == side  # it never had the file
    for gone in (second, third):
        with pytest.raises(RevisionNotFound):
            revision(reg, rev=gone)
    assert delete_files(reg, alice, NAME, [sha256]) == []
    collect(reg, revision_grace_s=0)
    assert read(reg, "copy.bin", name="alice/other") == b"s" * 9000
    assert [read(reg, path) for path in "abc"] == [b"1", b"2", b"3"]
    assert is_clean(reg)


def test_the_first_commit_may_lose_all_its_files(reg: Registry, alice: Caller) -> None:
    committed(reg, alice, {"secret.bin": b"s" * 9000})
    committed(reg, alice, {"a": b"1"})
    delete_files(reg, alice, NAME, [sha256_of(b"s" * 9000)])
    assert files(reg) == {"a": sha256_of(b"1")}
    assert files(reg, revision(reg).parent_commit or "") == {}


def test_revisions_that_were_dropped_before_keep_the_file_for_their_grace(
    reg: Registry, alice: Caller
) -> None:
    first = committed(reg, alice, {"a": b"1"})
    secret = {"secret.bin": b"s" * 9000}
    committed(reg, alice, secret)
    gone = committed(reg, alice, {**secret, "b": b"2"}, ref="side", expected_parent=first)
    delete_ref(reg, alice, NAME, "branch", "side")
    delete_files(reg, alice, NAME, [sha256_of(b"s" * 9000)])
    assert is_clean(reg)
    take_back(reg, alice, NAME, gone, "back")
    assert set(files(reg, "back")) == {"a", "b", "secret.bin"}
    delete_ref(reg, alice, NAME, "branch", "back")
    collect(reg, revision_grace_s=0)
    assert is_clean(reg)
    assert count(reg, File) == 1

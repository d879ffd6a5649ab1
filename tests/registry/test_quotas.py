"""Quotas: what a namespace uses is counted, and what would be too much is refused first."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.access import organizations
from deltahub.registry.catalog.commit import DeleteFile, commit
from deltahub.registry.catalog.repositories import (
    create_repository,
    delete_repository,
    move_repository,
)
from deltahub.registry.db.models import Namespace
from deltahub.registry.errors import Forbidden, InvalidRequest, NotFound, QuotaExceeded
from deltahub.registry.quotas.limits import Limits, set_limits, show_limits
from deltahub.registry.quotas.usage import Usage, measure
from deltahub.registry.retention.drop import delete_ref
from deltahub.registry.uploads.known_files import query_and_keep
from deltahub.registry.uploads.preflight import check_sizes
from support.registry.commits import NAME, revision
from support.registry.histories import committed
from support.registry.opened import caller, opened_registry, push, sha256_of


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def used(reg: Registry, alice: Caller, *names: str) -> Usage:
    for name in names:
        with reg.db.write() as session:
            measure(session, revision(reg, name).repository_id)
    return show_limits(reg, alice, "alice")[0]


def limit(reg: Registry, **limits: int | None) -> None:
    set_limits(reg, None, "alice", Limits(**limits), by_shell=True)


def test_each_file_of_a_repository_counts_once_and_what_is_shared_with_the_oldest(
    reg: Registry, alice: Caller
) -> None:
    data = bytes(range(256)) * 40
    committed(reg, alice, {"a": data, "copy": data})
    assert used(reg, alice).logical_bytes == len(data)
    one = used(reg, alice, NAME)
    assert (one.repositories, one.logical_bytes) == (1, len(data))
    assert 0 < one.stored_bytes < len(data)
    committed(reg, alice, {"a": data}, "alice/again")
    committed(reg, alice, {"b": b"b"})
    commit(reg, alice, NAME, "main", [DeleteFile("b")])
    two = used(reg, alice, NAME, "alice/again")
    assert (two.repositories, two.logical_bytes) == (2, 2 * len(data) + 1)
    assert one.stored_bytes < two.stored_bytes < 2 * one.stored_bytes
    delete_repository(reg, alice, NAME)
    assert used(reg, alice).repositories == 1


def test_files_beyond_the_limit_are_refused_before_they_are_sent(
    reg: Registry, alice: Caller
) -> None:
    committed(reg, alice, {"a": b"a" * 600})
    limit(reg, logical_bytes=1000)
    new = sha256_of(b"b" * 500)
    with pytest.raises(QuotaExceeded, match="would add 500 B"):
        query_and_keep(reg, alice, NAME, [(new, 500)])
    with pytest.raises(QuotaExceeded):
        check_sizes(reg, alice, NAME, [500])
    with pytest.raises(QuotaExceeded):
        push(reg, alice, NAME, {"b": b"b" * 500})
    assert query_and_keep(reg, alice, NAME, [(sha256_of(b"a" * 600), 600)])
    assert push(reg, alice, NAME, {"c": b"c" * 400, "a2": b"a" * 600}).changed
    with pytest.raises(QuotaExceeded):
        push(reg, alice, NAME, {"d": b"d"})
    limit(reg, logical_bytes=None)
    assert push(reg, alice, NAME, {"d": b"d"}).changed


def test_dropped_history_makes_room(reg: Registry, alice: Caller) -> None:
    first = committed(reg, alice, {"a": b"a" * 600})
    committed(reg, alice, {"b": b"b" * 400}, ref="side", expected_parent=first)
    limit(reg, logical_bytes=1000)
    with pytest.raises(QuotaExceeded):
        push(reg, alice, NAME, {"c": b"c" * 400})
    delete_ref(reg, alice, NAME, "branch", "side")
    assert push(reg, alice, NAME, {"c": b"c" * 400}).changed


def test_once_the_stored_bytes_are_used_up_nothing_new_comes(reg: Registry, alice: Caller) -> None:
    committed(reg, alice, {"a": b"a" * 600})
    stored = used(reg, alice, NAME).stored_bytes
    limit(reg, stored_bytes=stored + 1)
    committed(reg, alice, {"b": b"b" * 600})
    used(reg, alice, NAME)
    with pytest.raises(QuotaExceeded, match="stores"):
        push(reg, alice, NAME, {"c": b"c"})
    assert push(reg, alice, NAME, {"again": b"a" * 600}).changed  # it is there already


def test_repositories_beyond_the_limit_are_refused(reg: Registry, alice: Caller) -> None:
    organizations.create_organization(reg, "lab")
    organizations.add_member(reg, "lab", "alice", "admin")
    committed(reg, alice, {"a": b"1"})
    committed(reg, alice, {"a": b"1" * 100}, "lab/one")
    limit(reg, repositories=1)
    with pytest.raises(QuotaExceeded, match="may have 1"):
        create_repository(reg, alice, "alice/two")
    with pytest.raises(QuotaExceeded):
        move_repository(reg, alice, "lab/one", "alice/one")
    limit(reg, repositories=2, logical_bytes=50)
    with pytest.raises(QuotaExceeded, match="would add 100 B"):
        move_repository(reg, alice, "lab/one", "alice/one")
    move_repository(reg, alice, NAME, "alice/renamed")
    limit(reg, repositories=2)
    move_repository(reg, alice, "lab/one", "alice/one")


def test_a_default_counts_for_namespaces_without_their_own(tmp_path: Path) -> None:
    with opened_registry(tmp_path, quota_repositories=1) as reg:
        alice, root = caller(reg, "alice"), caller(reg, "root", is_admin=True)
        create_repository(reg, alice, NAME)
        with pytest.raises(QuotaExceeded):
            create_repository(reg, alice, "alice/two")
        with pytest.raises(Forbidden):
            set_limits(reg, alice, "alice", Limits(), by_shell=False)
        set_limits(reg, root, "alice", Limits(), by_shell=False)
        create_repository(reg, alice, "alice/two")
        set_limits(reg, root, "alice", None, by_shell=False)
        assert show_limits(reg, root, "alice")[1] == Limits(repositories=1)
        with pytest.raises(NotFound):
            set_limits(reg, root, "nobody", Limits(), by_shell=False)
        with pytest.raises(InvalidRequest):
            set_limits(reg, root, "alice", Limits(repositories=-1), by_shell=False)


def test_only_members_see_what_a_namespace_uses(reg: Registry, alice: Caller) -> None:
    for namespace in ("alice", "nobody"):
        for who in (None, caller(reg, "bob")):
            with pytest.raises(Forbidden, match="only its members"):
                show_limits(reg, who, namespace)
    with reg.db.read() as session:
        assert session.query(Namespace).count() == 2

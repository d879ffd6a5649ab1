"""Concurrent and killed commits: each one happens whole or not at all."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.access import tokens
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.catalog.repositories import create_repository, get_repository
from deltahub.registry.errors import RefMoved
from deltahub.registry.jobs import queue
from support import forked
from support.registry.commits import NAME, add, files
from support.registry.opened import caller, opened_registry, push, upload


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path, max_operations=50, max_entries=60) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def test_of_commits_at_once_with_the_same_parent_one_wins(reg: Registry, alice: Caller) -> None:
    first = push(reg, alice, NAME, {"a": b"1"})
    operations = [add(reg, alice, f"f{n}", b"%d" % n) for n in range(6)]
    outcomes: list[str] = []

    def run(operation: AddFile) -> None:
        try:
            commit(reg, alice, NAME, "main", [operation], expected_parent=first.commit)
            outcomes.append("committed")
        except RefMoved:
            outcomes.append("moved")

    threads = [threading.Thread(target=run, args=(operation,)) for operation in operations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["committed"] + ["moved"] * 5
    assert len(files(reg)) == 2


def test_commits_at_once_without_a_parent_all_come_in(reg: Registry, alice: Caller) -> None:
    push(reg, alice, NAME, {"a": b"1"})
    operations = [add(reg, alice, f"f{n}", b"%d" % n) for n in range(6)]
    threads = [
        threading.Thread(target=commit, args=(reg, alice, NAME, "main", [operation]))
        for operation in operations
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files(reg)) == 7


DIES_IN_COMMIT = """
import sys
from pathlib import Path
from deltahub.registry import Registry, Settings
from deltahub.registry.access.tokens import authenticate
from deltahub.registry.catalog.commit import AddFile, commit
with Registry.open(Settings(data_dir=Path(sys.argv[1]))) as reg:
    alice = authenticate(reg, sys.argv[2])
    commit(reg, alice, "alice/model", "main", [AddFile("a", sys.argv[3], 1)])
"""


@pytest.mark.parametrize("place", ["before_commit", "after_commit"])
def test_a_killed_commit_has_happened_whole_or_not_at_all(tmp_path: Path, place: str) -> None:
    with opened_registry(tmp_path) as reg:
        alice = caller(reg, "alice")
        create_repository(reg, alice, NAME)
        sha256 = upload(reg, alice, b"1")
        secret = tokens.create_token(reg, "alice", "write")
    died = forked.run(
        "-c", DIES_IN_COMMIT, tmp_path / "data", secret, sha256,
        environment={"DELTAHUB_FAILPOINT": f"revisions.commit.{place}"},
    )  # fmt: skip
    assert died.returncode == -9
    with opened_registry(tmp_path) as reg:
        happened = place == "after_commit"
        assert (get_repository(reg, alice, NAME).head is not None) == happened
        with reg.db.read() as session:
            assert len(queue.next_queued(session)) == happened
        assert push(reg, alice, NAME, {"a": b"1"}).changed is not happened
        assert files(reg) == {"a": sha256}

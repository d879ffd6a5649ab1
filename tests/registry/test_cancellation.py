"""Work stops at whatever moment its caller leaves, and leaves nothing half written."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from deltahub.registry import Caller, Registry, cancellation
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.db.models import Hold, Landing, Revision, Tensor, XetRange, Xorb
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.uploads.client_packs import accept_pack
from deltahub.registry.uploads.known_tensors import query_and_hold
from deltahub.registry.uploads.landing import begin, receive, status
from deltahub.registry.uploads.recipes import submit_recipe
from deltahub.registry.uploads.small_files import SmallFiles
from deltahub.registry.xet.receive_xorb import has_xorb
from support.registry.client_packs import file_of, frames_of, near, pack_of, weights
from support.registry.collecting import count
from support.registry.ingested import push_ingested
from support.registry.leaving import ends_before_leaving
from support.registry.opened import (
    caller,
    ensure_repository,
    opened_registry,
    sha256_of,
    upload,
)
from support.registry.xet import repository_row, send_shard, send_xorb
from support.registry.xet_uploads import FILE, ONE, TWO, landed

BASE = weights(4_000)
MOST_CHECKS = 500


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    who = caller(reg, "ann")
    ensure_repository(reg, who, "ann/m")
    return who


def leave_at_each_check(work: Callable[[], object], inspect: Callable[[], None]) -> int:
    """Run the work until it ends, with a caller that leaves one check later each time.

    Calls `inspect` after every run that was stopped; returns how many there were.
    """
    for n_checks in range(MOST_CHECKS):
        if ends_before_leaving(work, n_checks):
            return n_checks
        inspect()
    raise AssertionError(f"the work asks more than {MOST_CHECKS} times")


def test_a_shard_leaves_whole_files_or_none(reg: Registry, ann: Caller) -> None:
    send_xorb(reg, "ann/m", ONE)
    send_xorb(reg, "ann/m", TWO)

    def inspect() -> None:
        assert list(reg.spool.list()) == []
        with reg.db.read() as session:
            rows = session.query(Landing).all()
        assert {row.state for row in rows} <= {"complete"}
        assert len(list(reg.store.list("landing/"))) == len(rows)

    assert leave_at_each_check(lambda: send_shard(reg, ann, "ann/m", [FILE]), inspect) > 5
    assert landed(reg, ann, FILE.digest) == FILE.data
    assert count(reg, XetRange) == 3


def test_a_xorb_is_stored_whole_or_not_at_all(reg: Registry, ann: Caller) -> None:
    def inspect() -> None:
        assert count(reg, Xorb) == 0
        assert list(reg.scratch.iterdir()) == []

    assert leave_at_each_check(lambda: send_xorb(reg, "ann/m", ONE, ann), inspect) > 5
    place = repository_row(reg, "ann/m").id
    # Nor is a xorb called damaged because its caller left while it was read.
    assert leave_at_each_check(lambda: has_xorb(reg, place, ONE.hash), lambda: None) > 5
    assert has_xorb(reg, place, ONE.hash)


@pytest.mark.parametrize("private", [True, False])
def test_a_pack_gives_all_its_tensors_or_none(reg: Registry, ann: Caller, private: bool) -> None:
    push_ingested(reg, ann, "ann/base", {"a.bin": BASE})
    ensure_repository(reg, ann, "ann/p", private=private)
    n_before = count(reg, Tensor)
    tensors = [near(BASE), weights(700, seed=5), weights(600, seed=6)]
    frames = [*frames_of(tensors[0], BASE), *frames_of(tensors[1]), *frames_of(tensors[2])]
    pack = upload(reg, ann, pack_of(frames))

    def inspect() -> None:
        assert count(reg, Tensor) == n_before
        assert status(reg, ann, pack).is_complete
        assert list(reg.scratch.iterdir()) == []

    def accept() -> None:
        accept_pack(reg, FileReader(reg), ann, "ann/p", pack)

    assert leave_at_each_check(accept, inspect) > 5
    assert count(reg, Tensor) == n_before + 3


def test_a_recipe_becomes_a_job_or_leaves_no_hold_of_a_job(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/m", {"a.bin": BASE})
    _, recipe = file_of([BASE])

    def inspect() -> None:
        assert count(reg, Job) == n_jobs
        with reg.db.read() as session:
            assert session.query(Hold).where(Hold.job_id.is_not(None)).all() == []

    n_jobs = count(reg, Job)
    assert leave_at_each_check(lambda: submit_recipe(reg, ann, "ann/m", recipe), inspect) > 0
    assert count(reg, Job) == n_jobs + 1


def test_a_query_of_many_tensors_ends_between_its_parts(reg: Registry, ann: Caller) -> None:
    wanted = [(os.urandom(32), 1) for _ in range(4001)]
    runs = leave_at_each_check(lambda: query_and_hold(reg, ann, "ann/m", wanted), lambda: None)
    assert runs == 3


def test_a_commit_of_many_operations_is_made_or_not(reg: Registry, ann: Caller) -> None:
    files = SmallFiles(reg, ann)
    operations = [AddFile(f"{i}.txt", files.add(b"%d" % i), len(b"%d" % i)) for i in range(20)]
    files.flush()

    def inspect() -> None:
        assert count(reg, Revision) == 0

    def make() -> None:
        commit(reg, ann, "ann/m", "main", operations)

    assert leave_at_each_check(make, inspect) >= 20
    assert count(reg, Revision) == 1


def test_an_upload_that_a_kill_left_is_read_again_to_its_end_whoever_leaves(
    reg: Registry, ann: Caller
) -> None:
    """A client that waits less long than that could otherwise never go on with it."""
    data = Random(1).randbytes(3 << 20)
    upload_id = begin(reg, ann, sha256_of(data), len(data)).id
    # As after a kill between the store and the row.
    reg.store.put(landing_key(upload_id), [data])

    assert leave_at_each_check(lambda: status(reg, ann, sha256_of(data)), lambda: None) == 0
    with reg.db.read() as session:
        assert session.get_one(Landing, upload_id).state == "complete"


def test_a_part_that_follows_many_bytes_waits_for_their_hash_only_while_its_caller_does(
    tmp_path: Path,
) -> None:
    data = Random(2).randbytes((3 << 20) + 1)
    with opened_registry(tmp_path) as reg:
        receive(reg, caller(reg, "ann"), sha256_of(data), len(data), 0, [data[:-1]])
    with opened_registry(tmp_path) as reg:  # another process, which has no state of the hash
        ann = caller(reg, "ann")

        def go_on() -> None:
            receive(reg, ann, sha256_of(data), len(data), len(data) - 1, [data[-1:]])

        assert leave_at_each_check(go_on, lambda: None) == 3
        assert status(reg, ann, sha256_of(data)).is_complete


def test_nobody_asks_outside_of_a_request() -> None:
    cancellation.check()

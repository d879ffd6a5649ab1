"""Ingest jobs: a file that is uploaded again starts the failed ingests of its revisions again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Job
from deltahub.registry.jobs import ingest_jobs, queue
from support.registry.opened import caller, opened_registry, push, sha256_of


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def fail(reg: Registry, job_id: str | None) -> None:
    assert job_id is not None
    with reg.db.write() as session:
        assert queue.mark_failed(session, job_id, "data_lost", "an upload was damaged")


def ingest_again(reg: Registry, who: Caller, data: bytes) -> list[str]:
    with reg.db.write() as session:
        return ingest_jobs.ingest_again(session, who.user_id, sha256_of(data))


def test_a_file_that_is_uploaded_again_starts_the_failed_ingests_of_its_revisions_again(
    reg: Registry, alice: Caller
) -> None:
    failed = push(reg, alice, "alice/a", {"f": b"damaged", "g": b"12345"}).job_id
    push(reg, alice, "alice/b", {"f": b"damaged"})
    other = push(reg, alice, "alice/c", {"f": b"fine"}).job_id
    fail(reg, failed)
    fail(reg, other)
    assert ingest_again(reg, caller(reg, "bob"), b"damaged") == []
    (job_id,) = ingest_again(reg, alice, b"damaged")
    with reg.db.read() as session:
        job = session.get_one(Job, job_id)
        assert (job.state, job.kind, job.size_bytes) == ("queued", "ingest", 12)
        assert job.payload == session.get_one(Job, failed).payload
    assert ingest_again(reg, alice, b"damaged") == []

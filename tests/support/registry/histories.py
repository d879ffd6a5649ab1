"""Pushes a history of commits, ingested as a worker would, and reads files of it."""

from typing import Any

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Revision
from deltahub.registry.jobs import queue
from support.registry.commits import NAME, revision
from support.registry.ingested import ingest, read_file
from support.registry.opened import push


def committed(
    reg: Registry, who: Caller, files: dict[str, bytes], name: str = NAME, **options: Any
) -> str:
    """Commit and ingest these files; the commit. options: of push."""
    made = push(reg, who, name, files, **options).commit
    ingest_all(reg)
    return made


def ingest_all(reg: Registry) -> None:
    """Run the queued ingests; those of revisions that are gone have no work."""
    with reg.db.read() as session:
        waiting = queue.next_queued(session, 100, kinds=["ingest"])
        alive = {row.id for row in session.query(Revision.id)}
    for job in waiting:
        if job.payload["revision_id"] in alive:
            ingest(reg, job.payload["revision_id"], job.id)
            continue
        with reg.db.write() as session:
            assert queue.mark_running(session, job.id)
            queue.mark_done(session, job.id, {})


def read(reg: Registry, path: str, rev: str = "main", name: str = NAME) -> bytes:
    return read_file(reg, revision(reg, name, rev).id, path)

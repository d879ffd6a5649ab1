"""Starts a failed ingest again for clients that send no commit when no file changed."""

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.jobs import ingest_jobs
from deltahub.registry.registry import Registry


def ingest_again(reg: Registry, caller: Caller | None, name: str, revision: str) -> None:
    """Enqueue the ingest of a revision again if it failed or was cancelled."""
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        if not ingest_jobs.has_failed(session, resolve_revision(session, repository, revision)):
            return
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "write")
        found = resolve_revision(session, repository, revision)
        ingest_jobs.job_to_wait_for(session, found)

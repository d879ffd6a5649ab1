"""Reports on adapters, written by the worker that stored them.

A report is JSON that the worker's method made. The registry keeps it, and reads from it only what
decides whether an adapter's weights are served as they are: its state.
"""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import full_name
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.adapters.rules import OFF, rule_for
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.catalog.refs import find_ref, resolve_revision
from deltahub.registry.db.models import Ref, Repository, Revision
from deltahub.registry.db.session import ReadSession, repository_key
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.comparisons import AdapterReportRow
from deltahub.registry.errors import AdapterQuarantined, EntryNotFound
from deltahub.registry.registry import Registry

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
QUARANTINED: Final = "quarantined"


@retried
def write_report(reg: Registry, revision_id: int, state: str, report: Mapping[str, Any]) -> None:
    """Write the report on a revision's adapter, in place of one before."""
    with reg.db.read() as session:
        revision = session.get(Revision, revision_id)
        if revision is None:
            return  # deleted meanwhile
    with reg.db.write_beside(repository_key(revision.repository_id)) as session:
        now = session.get(Revision, revision_id)
        # Row ids are given again: the revision may be another one now.
        if now is None or now.commit != revision.commit:
            return
        known = session.get(AdapterReportRow, revision_id)
        if known is None:
            session.add(AdapterReportRow(revision_id=revision_id, state=state, report=dict(report)))
        else:
            known.state, known.report = state, dict(report)


def read_report(reg: Registry, caller: Caller | None, name: str, revision: str) -> dict[str, Any]:
    """The report on a revision's adapter. EntryNotFound if it is none, or not looked at yet."""
    with reg.db.read() as session:
        repository = load_repository(session, caller, name)
        found = resolve_revision(session, repository, revision)
        known = session.get(AdapterReportRow, found.id)
        if known is not None:
            return {**known.report, "convert": rule_for(session, repository)}
        is_adapter = CONFIG in entries_at(session, found, [CONFIG])
    if is_adapter:
        raise EntryNotFound(f"{name} is not looked at yet: wait for the ingest of {revision}")
    raise EntryNotFound(f"{name}@{revision} is no adapter: it has no {CONFIG}")


def shown_report(session: ReadSession, revision_id: int) -> dict[str, Any] | None:
    """The same for a page, of a revision that the reader may read; None without one."""
    known = session.get(AdapterReportRow, revision_id)
    return None if known is None else dict(known.report)


def shown_state(session: ReadSession, repository_id: int) -> str | None:
    """The state of the adapter at the head of main; None if there is none that was looked at."""
    query = (
        select(AdapterReportRow.state)
        .join(Repository, Repository.head_id == AdapterReportRow.revision_id)
        .where(Repository.id == repository_id)
    )
    return session.scalar(query)


def refuse_quarantined(
    session: ReadSession, repository: Repository, revision: Revision, asked: str, path: str
) -> None:
    """AdapterQuarantined for the weights of an adapter that every reader would load wrong.

    asked: the revision as the reader names it. A tag gives the bytes as they were pushed. A branch,
    which readers take for a working model, does not, and nor does its commit, because
    snapshot_download asks for the commit in place of the branch.
    """
    if path != WEIGHTS or find_ref(session, repository, "tag", asked) is not None:
        return
    report = _quarantine(session, revision)
    if report is None:
        return
    name = full_name(session, repository)
    raise AdapterQuarantined(
        f"{name} is quarantined, because every engine would load it wrong: {report.get('why')}."
        f" Way out: {report.get('way_out')}. The bytes as they were pushed: deltahub pull {name}"
    )


def withheld(session: ReadSession, revision: Revision) -> frozenset[str]:
    """Paths whose bytes no list of the revision's files may lead to, past that refusal."""
    return frozenset() if _quarantine(session, revision) is None else frozenset({WEIGHTS})


def _quarantine(session: ReadSession, revision: Revision) -> Mapping[str, Any] | None:
    """The report on an adapter at the head of a branch that is not served as it is."""
    known = session.get(AdapterReportRow, revision.id)
    if known is None or known.state != QUARANTINED or known.report.get("rule") == "unknown":
        return None
    heads = select(Ref.name).where(
        Ref.repository_id == revision.repository_id,
        Ref.kind == "branch",
        Ref.revision_id == revision.id,
    )
    repository = session.get_one(Repository, revision.repository_id)
    if session.scalar(heads) is None or rule_for(session, repository) == OFF:
        return None
    return known.report

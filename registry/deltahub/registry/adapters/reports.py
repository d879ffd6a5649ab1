"""Reports on adapters, written by the worker that stored them.

A report is JSON that the worker's method made. The registry keeps it, and reads from it only what
decides whether an adapter's weights are served as they are: its state.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed, full_name
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.adapters.files import CONFIG, WEIGHTS
from deltahub.registry.adapters.inspections import ask_for_report
from deltahub.registry.adapters.kits import has_kit
from deltahub.registry.adapters.rules import OFF, rule_for
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.catalog.refs import is_tag, resolve_revision
from deltahub.registry.db.models import Ref, Repository, Revision
from deltahub.registry.db.session import ReadSession, repository_key
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.comparisons import AdapterReportRow
from deltahub.registry.errors import AdapterQuarantined, EntryNotFound
from deltahub.registry.registry import Registry

QUARANTINED: Final = "quarantined"
# In place of the name of a base.
HIDDEN: Final = "a model that you may not read"


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
    """The report on a revision's adapter. EntryNotFound if it is none, or not looked at yet.

    One that no worker is about to look at, because an older release stored it, is looked at then.
    """
    with reg.db.read() as session:
        repository = load_repository(session, caller, name)
        found = resolve_revision(session, repository, revision)
        known = shown_report(session, caller, found.id)
        if known is not None:
            more = {
                "convert": rule_for(session, repository),
                "has_kit": has_kit(session, repository.id),
            }
            return {**known, **more}
        is_adapter = CONFIG in entries_at(session, found, [CONFIG])
    if is_adapter:
        ask_for_report(reg, found.id)
        raise EntryNotFound(
            f"{name} is not looked at yet: a job of the hub does so soon, so ask for {revision}"
            " again in a moment"
        )
    raise EntryNotFound(f"{name}@{revision} is no adapter: it has no {CONFIG}")


def shown_report(
    session: ReadSession, caller: Caller | None, revision_id: int
) -> dict[str, Any] | None:
    """The report on a revision that the caller may read, without the name of a base that the
    caller may not read; None without a report.
    """
    known = session.get(AdapterReportRow, revision_id)
    if known is None:
        return None
    base = known.report.get("base") or {}
    if not base.get("is_at_hand") or _may_read_base(session, caller, revision_id):
        return dict(known.report)
    # Not in longer names: an adapter is often named after its base.
    name = re.compile(rf"(?<![\w./-]){re.escape(base['name'])}(@\w+)?(?![\w/-]|\.\w)")
    shown: dict[str, Any] = _without(known.report, name)
    hidden = {"name": HIDDEN, "commit": None, "is_at_hand": False, "differs": base.get("differs")}
    return {**shown, "base": hidden, "base_digest": None}


def _may_read_base(session: ReadSession, caller: Caller | None, revision_id: int) -> bool:
    row = session.get_one(Revision, revision_id).declared_base_revision_id
    base = None if row is None else session.get(Revision, row)
    if base is None:
        return False
    return allowed(session, caller, "read", session.get_one(Repository, base.repository_id))


def _without(value: Any, name: re.Pattern[str]) -> Any:
    """The same JSON, with other words in place of a name in its texts."""
    if isinstance(value, str):
        return name.sub(HIDDEN, value)
    if isinstance(value, list):
        return [_without(each, name) for each in value]
    if isinstance(value, Mapping):
        return {key: _without(each, name) for key, each in value.items()}
    return value


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
    if path != WEIGHTS or is_tag(session, repository, asked):
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

"""Upgrades as their readers see them: no name of a model that the caller may not read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, case, func, or_, select, true

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed, full_name, readable_repositories
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.db.models import Membership, Repository, User
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.comparisons import Upgrade, UpgradedAdapter
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import InvalidRequest, UpgradeNotFound
from deltahub.registry.names import quoted
from deltahub.registry.registry import Registry
from deltahub.registry.upgrades.adapters import may_decide
from deltahub.registry.upgrades.plans import AGAIN, has_task_of

STATES: Final = ("proposed", "running", "done", "put_back", "rejected")
DELETED: Final = "a deleted model"
_HIDDEN: Final = "a model that you may not read"
_UNTOLD: Final = "those who may write to its namespace see why"


@dataclass(frozen=True)
class UpgradeInfo:
    """One upgrade. source: asked, or that the hub proposed it by a card or by the weights.

    old_link, new_link: whether these are models that can be opened. counts: state -> adapters that
    the caller may read. may_decide: whether the caller may decide on one of them.
    """

    id: int
    old: str
    new: str
    old_commit: str
    new_commit: str
    old_link: bool
    new_link: bool
    source: str
    policy: str
    state: str
    user: str | None
    created_at: datetime
    counts: Mapping[str, int]
    may_decide: bool


@dataclass(frozen=True)
class MoveInfo:
    """An adapter in the plan of an upgrade. state: that of the row, or `queued` while its job waits
    for its turn. plan, outcome: see plans.py and ends.py.
    """

    id: int
    adapter: str
    adapter_commit: str
    teacher: str | None
    state: str
    rungs: Sequence[Mapping[str, Any]]
    measured: Sequence[Mapping[str, Any]]
    seconds: float | None
    memory_bytes: int | None
    device: str | None
    missing: Sequence[str]
    notes: Sequence[str]
    why_not: str | None
    needs_prompts: bool
    chosen: str | None
    agreed: Mapping[str, Any] | None
    job_id: str | None
    result: str | None
    result_commit: str | None
    why: str | None
    changed_at: datetime
    may_decide: bool


def list_upgrades(
    reg: Registry,
    caller: Caller | None,
    *,
    base: str | None = None,
    state: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[UpgradeInfo]:
    """Upgrades whose bases the caller may read, newest first.

    base: only those from or to it. before: the id of the last one of an earlier page.
    InvalidRequest for what is no state; RepositoryNotFound.
    """
    if state is not None and state not in STATES:
        raise InvalidRequest(f"{quoted(state)} is no state: one of {', '.join(STATES)}")
    with reg.db.read() as session:
        query = _readable(caller)
        if base is not None:
            row = load_repository(session, caller, base).id
            query = query.where(
                or_(Upgrade.old_repository_id == row, Upgrade.new_repository_id == row)
            )
        if state is not None:
            query = query.where(Upgrade.state == state)
        if before is not None:
            query = query.where(Upgrade.id < before)
        found = session.scalars(query.order_by(Upgrade.id.desc()).limit(limit))
        return [_info(session, caller, each) for each in found.all()]


def count_open(reg: Registry) -> int:
    """Upgrades of the hub that wait for a decision."""
    query = select(func.count()).where(Upgrade.state == "proposed")
    with reg.db.read() as session:
        return session.scalar(query) or 0


def get_upgrade(
    reg: Registry, caller: Caller | None, upgrade_id: int
) -> tuple[UpgradeInfo, list[MoveInfo]]:
    """(an upgrade, its adapters that the caller may read); UpgradeNotFound."""
    with reg.db.read() as session:
        upgrade = load_upgrade(session, caller, upgrade_id)
        rows = _readable_rows(session, caller, upgrade)
        info = _info(session, caller, upgrade)
        return info, [_move(session, caller, row, state) for row, state in rows]


def load_upgrade(session: ReadSession, caller: Caller | None, upgrade_id: int) -> Upgrade:
    """The row; UpgradeNotFound unless the caller may read both bases."""
    found: Upgrade | None = session.scalar(_readable(caller).where(Upgrade.id == upgrade_id))
    if found is None:
        raise UpgradeNotFound(
            f"there is no upgrade {upgrade_id}, or you may not read both of its bases"
        )
    return found


def shown_name(session: ReadSession, caller: Caller | None, row: UpgradedAdapter) -> str:
    """The name that an adapter has now; that of a deleted one for those who decide on it alone."""
    repository = _repository(session, row.adapter_repository_id)
    if repository is not None:
        is_readable = allowed(session, caller, "read", repository)
        return full_name(session, repository) if is_readable else _HIDDEN
    if caller is not None and may_decide(session, caller, row.namespace_id):
        return row.adapter_name
    return DELETED


def _readable(caller: Caller | None) -> Any:
    """A query for upgrades whose bases the caller may read. One whose base was deleted is shown to
    the user who asked for it, and to administrators.
    """
    query = select(Upgrade)
    if caller is not None and caller.is_superuser:
        return query
    readable = select(Repository.id).where(readable_repositories(caller))
    reads_both = Upgrade.old_repository_id.in_(readable) & Upgrade.new_repository_id.in_(readable)
    if caller is None:
        return query.where(reads_both)
    is_gone = Upgrade.old_repository_id.is_(None) | Upgrade.new_repository_id.is_(None)
    return query.where(or_(reads_both, is_gone & (Upgrade.user_id == caller.user_id)))


def _visible(caller: Caller | None) -> ColumnElement[bool]:
    """SQL condition on a row and its adapter: the caller may read the adapter, or decides on it
    after it was deleted.
    """
    is_readable = Repository.id.is_not(None) & readable_repositories(caller)
    if caller is None:
        return is_readable
    if caller.is_superuser:
        return true()
    decided = select(Membership.namespace_id).where(
        Membership.user_id == caller.user_id, Membership.role.in_(("write", "admin"))
    )
    is_own = Repository.id.is_(None) & UpgradedAdapter.namespace_id.in_(decided)
    return or_(is_readable, is_own)


def _readable_rows(
    session: ReadSession, caller: Caller | None, upgrade: Upgrade
) -> list[tuple[UpgradedAdapter, str]]:
    """(row, its state as it is shown)"""
    query = (
        select(UpgradedAdapter, _shown_state())
        .outerjoin(Repository, Repository.id == UpgradedAdapter.adapter_repository_id)
        .outerjoin(Job, Job.id == UpgradedAdapter.job_id)
        .where(UpgradedAdapter.upgrade_id == upgrade.id, _visible(caller))
    )
    return [(row, state) for row, state in session.execute(query.order_by(UpgradedAdapter.id))]


def _info(session: ReadSession, caller: Caller | None, upgrade: Upgrade) -> UpgradeInfo:
    state = _shown_state()
    query = (
        select(state, UpgradedAdapter.namespace_id, func.count())
        .outerjoin(Repository, Repository.id == UpgradedAdapter.adapter_repository_id)
        .outerjoin(Job, Job.id == UpgradedAdapter.job_id)
        .where(UpgradedAdapter.upgrade_id == upgrade.id, _visible(caller))
        .group_by(state, UpgradedAdapter.namespace_id)
    )
    counts: dict[str, int] = {}
    namespaces: set[int] = set()
    for each, namespace, n in session.execute(query):
        counts[each] = counts.get(each, 0) + n
        namespaces.add(namespace)
    user = None if upgrade.user_id is None else session.get(User, upgrade.user_id)
    old, old_link = _base(session, caller, upgrade.old_repository_id, upgrade.old_name)
    new, new_link = _base(session, caller, upgrade.new_repository_id, upgrade.new_name)
    return UpgradeInfo(
        id=upgrade.id,
        old=old,
        new=new,
        old_commit=upgrade.old_commit,
        new_commit=upgrade.new_commit,
        old_link=old_link,
        new_link=new_link,
        source=upgrade.source,
        policy=upgrade.policy,
        state=upgrade.state,
        user=None if user is None else user.name,
        created_at=upgrade.created_at,
        counts=counts,
        may_decide=caller is not None
        and any(may_decide(session, caller, each) for each in namespaces),
    )


def _shown_state() -> ColumnElement[str]:
    """The state of a move, in a query with its job: the row of one that has begun does not say
    whether a worker has taken its job yet.
    """
    is_waiting = (UpgradedAdapter.state == "running") & (Job.state == "queued")
    return case((is_waiting, "queued"), else_=UpgradedAdapter.state)


def _base(
    session: ReadSession, caller: Caller | None, row_id: int | None, name: str
) -> tuple[str, bool]:
    """(the name of a base as the caller may see it, whether it is there)"""
    repository = _repository(session, row_id)
    if repository is None:
        return f"{name} (deleted)", False
    if not allowed(session, caller, "read", repository):
        return _HIDDEN, False
    return full_name(session, repository), True


def _move(
    session: ReadSession, caller: Caller | None, row: UpgradedAdapter, state: str
) -> MoveInfo:
    plan, outcome = row.plan, row.outcome or {}
    name = shown_name(session, caller, row)
    result = _repository(session, row.result_repository_id)
    shows_result = result is not None and allowed(session, caller, "read", result)
    decides = caller is not None and may_decide(session, caller, row.namespace_id)
    needs_prompts = bool(plan.get("needs_prompts")) and not has_task_of(row, caller)
    is_blocked = row.state in AGAIN and (needs_prompts or not plan.get("needs_prompts"))
    # Reasons name the teacher, and an old one may be private to those who decide.
    shows_why = decides or plan.get("teacher") == plan.get("adapter")
    return MoveInfo(
        id=row.id,
        adapter=name,
        adapter_commit=row.adapter_commit,
        teacher=plan.get("teacher") if decides else None,
        state=state,
        rungs=_ways(plan.get("rungs"), shows_why),
        measured=_ways(outcome.get("rungs"), shows_why),
        seconds=plan.get("seconds"),
        memory_bytes=plan.get("memory_bytes"),
        device=plan.get("device"),
        missing=plan.get("missing") or () if shows_why else (),
        notes=plan.get("notes") or () if decides else (),
        why_not=_reason(plan.get("why_not"), shows_why) if is_blocked else None,
        needs_prompts=needs_prompts,
        chosen=outcome.get("chosen"),
        agreed=outcome.get("agreed"),
        job_id=row.job_id if decides else None,
        result=full_name(session, result) if result is not None and shows_result else None,
        result_commit=row.result_commit if shows_result else None,
        why=row.why if decides else None,
        changed_at=row.changed_at,
        may_decide=decides,
    )


def _ways(told: Sequence[Mapping[str, Any]] | None, shows_why: bool) -> list[Mapping[str, Any]]:
    """What is told of each way, with its reason if that may be shown."""
    return [
        {**each, "why_not": _reason(each["why_not"], shows_why)} if "why_not" in each else each
        for each in told or ()
    ]


def _reason(why: str | None, shows_why: bool) -> str | None:
    return why if shows_why or why is None else _UNTOLD


def _repository(session: ReadSession, row_id: int | None) -> Repository | None:
    return None if row_id is None else session.get(Repository, row_id)

"""Approves and rejects the adapters of an upgrade, one by one or all together."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.db.models import utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.comparisons import Upgrade, UpgradedAdapter
from deltahub.registry.errors import Conflict, Forbidden, InvalidRequest, RepositoryNotFound
from deltahub.registry.registry import Registry
from deltahub.registry.upgrades.adapters import may_decide
from deltahub.registry.upgrades.plans import (
    AGAIN,
    approve_row,
    forget_task,
    has_task_of,
    is_ending,
    rows_of,
    settle,
)
from deltahub.registry.upgrades.shown import DELETED, load_upgrade, shown_name


@dataclass(frozen=True)
class Decided:
    """Names of the adapters on which was decided now. n_left: those that cannot be approved."""

    adapters: tuple[str, ...]
    n_left: int = 0


def approve(
    reg: Registry,
    caller: Caller | None,
    upgrade_id: int,
    adapters: Collection[str] | None = None,
    task: Mapping[str, Any] | None = None,
) -> Decided:
    """Let adapters move: those that are named, or all that are proposed and can move.

    An adapter whose move failed, was rejected, kept or put back is tried again if it is named.
    task: what shows the task of the one adapter that is named, which lacks a kit: the arguments
    `prompts`, `template` and `max_new_tokens` of its job, already checked. After a move that failed
    or was kept, its approver may leave them out; somebody else gives his own.
    UpgradeNotFound; RepositoryNotFound for an adapter that is not in the plan; Forbidden; Conflict
    for one that cannot move, with the reason.
    """
    user = require_writer(caller)
    if task is not None and (adapters is None or len(set(adapters)) != 1):
        raise InvalidRequest("prompts show the task of one adapter: name that one alone")
    with reg.db.write_beside() as session:
        upgrade = load_upgrade(session, user, upgrade_id)
        chosen = _chosen(session, user, upgrade, adapters)
        decided, n_left = [], 0
        for name, row in chosen:
            if row.state in ("approved", "running", "published"):
                continue  # decided before
            why = _why_not(session, user, row, has_prompts=task is not None)
            if adapters is None and (row.state != "proposed" or why is not None):
                n_left += row.state == "proposed"
                continue
            if why is not None:
                raise Conflict(f"{name} cannot move: {why}")
            if task is not None:
                forget_task(row)
                row.arguments = {**row.arguments, **task}
            approve_row(row, user)
            decided.append(name)
        session.flush()
        settle(session, upgrade)
        _tell(session, user, "upgrade.approve", upgrade, decided)
    return Decided(tuple(decided), n_left)


def reject(
    reg: Registry, caller: Caller | None, upgrade_id: int, adapters: Collection[str] | None = None
) -> Decided:
    """Leave adapters where they are: those that are named, or all that have not begun.

    The errors of `approve`; Conflict for one that runs or has moved.
    """
    user = require_writer(caller)
    with reg.db.write_beside() as session:
        upgrade = load_upgrade(session, user, upgrade_id)
        decided = []
        for name, row in _chosen(session, user, upgrade, adapters):
            if row.state in ("proposed", "approved"):
                row.state, row.user_id, row.changed_at = "rejected", user.user_id, utc_now()
                forget_task(row)
                decided.append(name)
            elif adapters is not None and row.state in ("running", "published"):
                raise Conflict(
                    f"{name} is {row.state}: put the upgrade back, or delete the result alone"
                )
        session.flush()
        settle(session, upgrade)
        _tell(session, user, "upgrade.reject", upgrade, decided)
    return Decided(tuple(decided))


def reject_open(reg: Registry, caller: Caller, old_repository_id: int) -> int:
    """Reject what no job has begun, in every upgrade of an old base; how many adapters of those on
    which the caller may decide.
    """
    n_rejected = 0
    with reg.db.write_beside() as session:
        query = select(Upgrade).where(Upgrade.old_repository_id == old_repository_id)
        for upgrade in session.scalars(query.order_by(Upgrade.id)).all():
            for row in rows_of(session, upgrade.id):
                is_open = row.state in ("proposed", "approved")
                if is_open and may_decide(session, caller, row.namespace_id):
                    row.state, row.user_id, row.changed_at = "rejected", caller.user_id, utc_now()
                    forget_task(row)
                    n_rejected += 1
            session.flush()
            settle(session, upgrade)
    return n_rejected


def _chosen(
    session: WriteSession, user: Caller, upgrade: Upgrade, adapters: Collection[str] | None
) -> list[tuple[str, UpgradedAdapter]]:
    """(name, row) of the adapters that are named, or of all on which the user may decide."""
    if adapters is not None and not adapters:
        raise InvalidRequest("no adapter is named: name some, or leave the list out for all")
    rows = [(shown_name(session, user, row), row) for row in rows_of(session, upgrade.id)]
    own = [each for each in rows if may_decide(session, user, each[1].namespace_id)]
    if adapters is None:
        if rows and not own:
            raise Forbidden(f"{user.name} may write to no namespace of these adapters")
        return own
    by_name = {name: row for name, row in rows if name != DELETED}
    for name in adapters:
        if name not in by_name:
            raise RepositoryNotFound(f"{name[:200]} is no adapter of this upgrade")
        if not may_decide(session, user, by_name[name].namespace_id):
            raise Forbidden(f"{user.name} may not write to the namespace of {name}")
    return [(name, by_name[name]) for name in dict.fromkeys(adapters)]


def _why_not(
    session: ReadSession, user: Caller, row: UpgradedAdapter, *, has_prompts: bool
) -> str | None:
    if row.adapter_repository_id is None:
        return "it was deleted"
    if row.state not in AGAIN:
        return f"it is {row.state}"
    if is_ending(session, row):
        return "the move that was put back is just being stopped: try again in a moment"
    lacks_prompts = bool(row.plan.get("needs_prompts"))
    if has_prompts:
        return None if lacks_prompts else "its kit shows its task: leave prompts out"
    if lacks_prompts and has_task_of(row, user):
        return None
    found: str | None = row.plan.get("why_not")
    if lacks_prompts and row.arguments.get("prompts"):
        found = f"{found}; the prompts of its last move were given by somebody else: give your own"
    return found


def _tell(
    session: WriteSession, user: Caller, action: str, upgrade: Upgrade, adapters: Collection[str]
) -> None:
    detail = {"upgrade": upgrade.id, "adapters": len(adapters)}
    audit.append(session, user, action, upgrade.new_name, detail)

"""The plan of an upgrade, as rows: made once for a pair of bases, and brought up to date after."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import full_name
from deltahub.registry.access.repositories import find_repository
from deltahub.registry.adapters.pools import delete_pools
from deltahub.registry.db.models import Repository, Revision, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.comparisons import Upgrade, UpgradedAdapter
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import Conflict, InvalidRequest, RevisionNotFound
from deltahub.registry.jobs.queue import ACTIVE, new_id
from deltahub.registry.names import MAX_NAME
from deltahub.registry.registry import Registry
from deltahub.registry.upgrades.rules import AUTO

# The kind of job that moves one adapter.
MOVE: Final = "transfer_adapter"
# States in which a new plan takes the place of the old one.
OPEN: Final = ("proposed", "failed", "kept", "put_back")
# States in which a move can be asked for, or asked for again.
AGAIN: Final = ("rejected", *OPEN)
_MOST_NAMES: Final = 100


@dataclass(frozen=True)
class PlannedMove:
    """What is planned for one adapter. waits_for_id: the repository of the adapter whose move makes
    inputs up for this one, too, and which therefore begins before it.

    revision_id: of the adapter. arguments: of the job that moves it. inputs: of these, the row of
    each revision that they name, so that a model that is renamed meanwhile is found. plan:
    `rungs` [{rung, seconds, memory_bytes, why_not}], `seconds`, `memory_bytes`, `device`,
    `missing` [sentences], `notes` [sentences], `pool` [rows of the adapters whose kits make inputs
    up for it] and `why_not`, a sentence if it cannot be approved.
    """

    repository_id: int
    revision_id: int
    arguments: Mapping[str, Any]
    inputs: Mapping[str, int]
    plan: Mapping[str, Any]
    waits_for_id: int | None = None


@dataclass(frozen=True)
class Written:
    """upgrade_id: None if there was nothing to plan. n_planned, n_kept: adapters whose plan is new,
    and those that were decided on before, whose plan stays.
    """

    upgrade_id: int | None
    n_planned: int
    n_kept: int


@retried
def write_plan(
    reg: Registry,
    caller: Caller,
    bases: tuple[int, int],
    moves: Sequence[PlannedMove],
    policy: str,
    source: str = "asked",
) -> Written:
    """Write the plan of an upgrade, or bring the one that is there up to date.

    bases: the rows of the old and the new base's revisions. policy: auto approves what can be
    approved. source: asked, card or weights, of a new upgrade. RevisionNotFound if a base was
    deleted meanwhile; adapters that were are left out.
    """
    with reg.db.write_beside(f"upgrades {bases[0]}") as session:
        old, new = (session.get(Revision, row) for row in bases)
        if old is None or new is None:
            raise RevisionNotFound("a base was deleted meanwhile: name another one")
        upgrade = find_pair(session, old, new)
        if upgrade is None:
            if not moves:
                return Written(None, 0, 0)
            upgrade = add_upgrade(session, caller, old, new, source)
        known = {row.adapter_repository_id: row for row in rows_of(session, upgrade.id)}
        n_planned = 0
        for move in moves:
            planned = _write_move(session, upgrade, known.get(move.repository_id), move)
            n_planned += planned is not None
            if planned is not None and policy == AUTO and planned.plan.get("why_not") is None:
                approve_row(planned, caller)
        if n_planned:
            upgrade.policy, upgrade.new_commit, upgrade.old_commit = policy, new.commit, old.commit
            upgrade.old_name, upgrade.new_name = (
                full_name(session, session.get_one(Repository, each.repository_id))
                for each in (old, new)
            )
        session.flush()
        settle(session, upgrade)
        detail = {"upgrade": upgrade.id, "planned": n_planned, "policy": policy}
        audit.append(session, caller, "upgrade.plan", upgrade.new_name, detail)
        return Written(upgrade.id, n_planned, len(moves) - n_planned)


def add_upgrade(
    session: WriteSession, caller: Caller, old: Revision, new: Revision, source: str
) -> Upgrade:
    """A new upgrade without any adapter yet."""
    names = [
        full_name(session, session.get_one(Repository, each.repository_id)) for each in (old, new)
    ]
    upgrade = Upgrade(
        old_repository_id=old.repository_id,
        new_repository_id=new.repository_id,
        old_name=names[0],
        new_name=names[1],
        old_commit=old.commit,
        new_commit=new.commit,
        source=source,
        policy="ask",
        state="proposed",
        user_id=caller.user_id,
    )
    session.add(upgrade)
    session.flush()
    return upgrade


def find_pair(session: ReadSession, old: Revision, new: Revision) -> Upgrade | None:
    """The upgrade of this pair of bases, whatever their commits were."""
    return session.scalar(
        select(Upgrade).where(
            Upgrade.old_repository_id == old.repository_id,
            Upgrade.new_repository_id == new.repository_id,
        )
    )


def rows_of(session: WriteSession, upgrade_id: int) -> list[UpgradedAdapter]:
    """The adapters of an upgrade, locked: whoever else decides on them waits for this session."""
    query = select(UpgradedAdapter).where(UpgradedAdapter.upgrade_id == upgrade_id)
    return list(session.scalars(query.order_by(UpgradedAdapter.id).with_for_update()))


def is_ending(session: ReadSession, row: UpgradedAdapter) -> bool:
    """Whether the job of a move that was put back still runs, or its result is still to be deleted:
    another move would make the hub forget it.
    """
    job = None if row.job_id is None or row.state != "put_back" else session.get(Job, row.job_id)
    if job is None:
        return False
    return job.state in ACTIVE or (job.state == "done" and job.repository_id is not None)


def approve_row(row: UpgradedAdapter, caller: Caller) -> None:
    """Let the next look at what may run begin the move, in the caller's name."""
    row.state, row.user_id, row.scope = "approved", caller.user_id, caller.scope
    row.key, row.job_id, row.why, row.outcome = new_id(), None, None, None
    row.result_repository_id = row.result_commit = row.deletion_id = None
    row.changed_at = utc_now()


def has_task_of(row: UpgradedAdapter, caller: Caller | None) -> bool:
    """Whether this caller gave inputs of the task for an earlier try. Those of somebody else count
    for nobody: who approves a move answers for what it shows, and has seen that alone.
    """
    is_own = caller is not None and row.user_id == caller.user_id
    return is_own and bool(row.arguments.get("prompts"))


def forget_task(row: UpgradedAdapter) -> None:
    """Drop the inputs that somebody gave for a move that was undecided: who approves it next, who
    may be another, gives his own.
    """
    if row.plan.get("needs_prompts"):
        given = ("prompts", "template", "max_new_tokens")
        row.arguments = {key: value for key, value in row.arguments.items() if key not in given}


def settle(session: WriteSession, upgrade: Upgrade) -> None:
    """Bring the state of an upgrade up to date with those of its adapters. When nothing of it is
    left to do, the inputs that its moves shared are deleted.
    """
    session.flush()
    # Locked, after the adapters: whoever comes last sees the states of all.
    session.refresh(upgrade, with_for_update={"key_share": True})
    states = select(UpgradedAdapter.state).where(UpgradedAdapter.upgrade_id == upgrade.id)
    upgrade.state = _state_of(set(session.scalars(states.distinct())))
    if upgrade.state not in ("proposed", "running"):
        delete_pools(session, upgrade.new_repository_id)
    session.flush()


def free_name(session: ReadSession, namespace: str, short: str, taken: Collection[str] = ()) -> str:
    """`namespace/short`, with a number behind it if a repository has this name already."""
    for number in range(1, _MOST_NAMES):
        end = "" if number == 1 else f"-{number}"
        name = f"{namespace}/{short[: MAX_NAME - len(end)]}{end}"
        if name not in taken and find_repository(session, name) is None:
            return name
    raise Conflict(f"{namespace} has {_MOST_NAMES} repositories named like {short}: delete some")


def require_pair(old: Revision, new: Revision) -> None:
    """InvalidRequest for two commits of one repository."""
    if old.repository_id == new.repository_id:
        raise InvalidRequest(
            "the old and the new base are one repository: push the new base to one of its own, so"
            " that the adapters of the old one keep their base"
        )


def _write_move(
    session: WriteSession, upgrade: Upgrade, row: UpgradedAdapter | None, move: PlannedMove
) -> UpgradedAdapter | None:
    """The row with its new plan; None if a plan stays, or the adapter is gone."""
    if row is not None and (row.state not in OPEN or is_ending(session, row)):
        return None
    repository = session.get(Repository, move.repository_id)
    revision = session.get(Revision, move.revision_id)
    if repository is None or revision is None or revision.repository_id != repository.id:
        return None
    name = full_name(session, repository)
    if row is None:
        row = UpgradedAdapter(upgrade_id=upgrade.id, adapter_repository_id=repository.id)
    row.namespace_id = repository.namespace_id
    row.adapter_name, row.adapter_commit = name, revision.commit
    row.plan = {**move.plan, "inputs": dict(move.inputs)}
    row.arguments, row.waits_for_id = dict(move.arguments), move.waits_for_id
    row.state, row.scope, row.changed_at = "proposed", "write", utc_now()
    row.user_id = row.key = row.job_id = row.why = row.outcome = None
    row.result_name = str(move.arguments["name"])
    row.result_repository_id = row.result_commit = None
    session.add(row)
    return row


def _state_of(states: Collection[str]) -> str:
    if {"approved", "running"} & set(states):
        return "running"
    for state, shown in (("proposed", "proposed"), ("published", "done"), ("put_back", "put_back")):
        if state in states:
            return shown
    return "done" if {"kept", "failed"} & set(states) else "rejected"

"""Begins the moves that were approved, some at a time, and notes how they ended.

The worker looks here every few seconds. No job waits for others meanwhile, so that an upgrade takes
no worker's turn but those of its moves.
"""

import logging
from typing import Final

from sqlalchemy import exists, func, select
from sqlalchemy.orm import aliased

from deltahub.registry.access.caller import Caller, Scope
from deltahub.registry.access.permissions import full_name
from deltahub.registry.adapters.kits import has_kit
from deltahub.registry.db.models import Repository, Revision, User, utc_now
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.comparisons import Upgrade, UpgradedAdapter
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import (
    Busy,
    Cancelled,
    Forbidden,
    LimitExceeded,
    QuotaExceeded,
    RegistryError,
    RepositoryExists,
    StorageFull,
    Unavailable,
)
from deltahub.registry.jobs import queue
from deltahub.registry.registry import Registry
from deltahub.registry.results.asked import Wish, ask
from deltahub.registry.upgrades.ends import note_ends
from deltahub.registry.upgrades.plans import MOVE, free_name, settle
from deltahub.registry.upgrades.put_back import take_back_late

log = logging.getLogger(__name__)

# Unfinished jobs of one upgrade: others of its user get their turns between them.
MOST_RUNNING: Final = 4
# Rows in one look, of one upgrade no more than may run: one whose user has too many jobs must not
# hold up the others.
_MOST: Final = 100
# Ways in which a move cannot begin now, and may a little later.
_PASSING: Final = (Busy, LimitExceeded, RepositoryExists, StorageFull, Unavailable)


def advance(reg: Registry) -> int:
    """Note the ends of moves, and begin others; how many rows changed. It can be run at any time.

    Costs two queries while there is nothing to do.
    """
    n_ended, late = note_ends(reg)
    for row_id in late:
        take_back_late(reg, row_id)
    return n_ended + sum(_begin(reg, row_id) for row_id in _to_begin(reg))


def _to_begin(reg: Registry) -> list[int]:
    """Rows that were approved, as many as may begin now. One that shares the inputs of another move
    waits for that one, so that they are made up once.
    """
    full = (
        select(UpgradedAdapter.upgrade_id)
        .where(UpgradedAdapter.state == "running")
        .group_by(UpgradedAdapter.upgrade_id)
        .having(func.count() >= MOST_RUNNING)
    )
    with reg.db.read() as session:
        first_of_task = aliased(UpgradedAdapter)
        waits = exists(
            select(first_of_task.id).where(
                first_of_task.upgrade_id == UpgradedAdapter.upgrade_id,
                first_of_task.adapter_repository_id == UpgradedAdapter.waits_for_id,
                first_of_task.state.in_(("approved", "running")),
            )
        )
        place = func.row_number().over(
            partition_by=UpgradedAdapter.upgrade_id, order_by=UpgradedAdapter.id
        )
        approved = (
            select(UpgradedAdapter.id, UpgradedAdapter.upgrade_id, place.label("place"))
            .where(
                UpgradedAdapter.state == "approved",
                UpgradedAdapter.upgrade_id.not_in(full),
                ~waits,
            )
            .subquery()
        )
        first = select(approved.c.id, approved.c.upgrade_id).where(approved.c.place <= MOST_RUNNING)
        rows = session.execute(first.order_by(approved.c.place, approved.c.id).limit(_MOST)).all()
        if not rows:
            return []
        running = (
            select(UpgradedAdapter.upgrade_id, func.count())
            .where(
                UpgradedAdapter.state == "running",
                UpgradedAdapter.upgrade_id.in_({upgrade for _, upgrade in rows}),
            )
            .group_by(UpgradedAdapter.upgrade_id)
        )
        n_running = {upgrade: n for upgrade, n in session.execute(running)}
    chosen = []
    for row_id, upgrade in rows:
        if n_running.get(upgrade, 0) < MOST_RUNNING:
            n_running[upgrade] = n_running.get(upgrade, 0) + 1
            chosen.append(row_id)
    return chosen


def _begin(reg: Registry, row_id: int) -> int:
    """Ask for the job of a row; 1 if its state changed. The same key gives the same job, whoever
    asks, so that a crash before the row is written begins no second one.
    """
    try:
        wish = _wish(reg, row_id)
        if wish is None:
            return 0
        caller, wanted, key = wish
        job = ask(reg, caller, wanted, idempotency_key=key)
    except Cancelled:
        raise
    except QuotaExceeded as error:
        return _fail(reg, row_id, str(error))
    except _PASSING as error:
        log.info("upgraded adapter %d begins later: %s", row_id, error)
        return 0
    except RegistryError as error:
        return _fail(reg, row_id, str(error))
    return _mark_begun(reg, row_id, job.id, key, wanted)


@retried
def _mark_begun(reg: Registry, row_id: int, job_id: str, key: str, wish: Wish) -> int:
    with reg.db.write_beside() as session:
        row = session.get(UpgradedAdapter, row_id, with_for_update=True)
        is_wanted = row is not None and row.key == key
        if row is not None and is_wanted and row.job_id == job_id:
            return 0  # another worker has begun it in this moment
        if row is not None and is_wanted:
            row.job_id = job_id
        # Put back or rejected in this moment, and perhaps approved again by another key.
        if row is None or not is_wanted or row.state != "approved":
            job = session.get(Job, job_id)
            if job is not None:
                queue.ask_to_stop(session, job)
            return 0
        row.state, row.result_name, row.changed_at = "running", wish.name, utc_now()
        row.arguments = dict(wish.arguments)
        settle(session, session.get_one(Upgrade, row.upgrade_id))
        return 1


@retried
def _fail(reg: Registry, row_id: int, why: str) -> int:
    with reg.db.write_beside() as session:
        row = session.get(UpgradedAdapter, row_id, with_for_update=True)
        if row is None or row.state != "approved":
            return 0
        begun = select(Job.id).where(Job.user_id == row.user_id, Job.idempotency_key == row.key)
        if session.scalar(begun) is not None:
            return 0  # another worker has begun it in this moment
        row.state, row.why, row.changed_at = "failed", why[:2000], utc_now()
        settle(session, session.get_one(Upgrade, row.upgrade_id))
        return 1


def _wish(reg: Registry, row_id: int) -> tuple[Caller, Wish, str] | None:
    """(who approved it, what is asked for, its key); None if the row waits no more."""
    with reg.db.read() as session:
        row = session.get(UpgradedAdapter, row_id)
        if row is None or row.state != "approved" or row.key is None:
            return None
        user = None if row.user_id is None else session.get(User, row.user_id)
        if user is None:
            raise Forbidden("the user who approved it was deleted: approve it again")
        scope: Scope = "admin" if row.scope == "admin" else "write"
        caller = Caller(user.id, user.name, user.is_admin, scope)
        known = session.scalar(
            select(Job).where(Job.user_id == user.id, Job.idempotency_key == row.key)
        )
        arguments = dict(row.arguments)
        if known is not None:  # asked for before a crash
            arguments = dict(known.payload["arguments"])
        else:
            for field, revision_id in row.plan.get("inputs", {}).items():
                arguments[field] = _current_name(session, arguments[field], revision_id)
            arguments["pool"] = _pool(session, row)
            namespace, _, short = str(arguments["name"]).partition("/")
            arguments["name"] = free_name(session, namespace, short)
        inputs = [arguments[key] for key in ("adapter", "base", "source_base")
                  if arguments.get(key)]  # fmt: skip
        inputs += arguments["pool"] or []
        wish = Wish(MOVE, arguments, arguments["name"], inputs, arguments.get("private"))
        return caller, wish, row.key


def _pool(session: ReadSession, row: UpgradedAdapter) -> list[str] | None:
    """The adapters that share inputs with this one, by their names today; None unless all of them
    are still there, with kits: then the move makes up its own.
    """
    named = row.arguments.get("pool") or []
    rows = [row.plan.get("inputs", {}).get("adapter", 0), *row.plan.get("pool", ())]
    found = [session.get(Revision, each) for each in rows]
    if not named or not all(each and has_kit(session, each.repository_id) for each in found):
        return None
    return [_current_name(session, *each) for each in zip(named, rows[1:], strict=True)]


def _current_name(session: ReadSession, text: str, revision_id: int) -> str:
    """`namespace/name@commit` with the name that the model has now."""
    revision = session.get(Revision, revision_id)
    commit = text.partition("@")[2]
    # Row ids are given again: the revision may be another one now.
    if revision is None or revision.commit != commit:
        return text
    return f"{full_name(session, session.get_one(Repository, revision.repository_id))}@{commit}"

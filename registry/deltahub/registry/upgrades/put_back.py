"""Puts an upgrade back: what it made is deleted, unless somebody has changed it since."""

from collections.abc import Sequence
from dataclasses import dataclass

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, Scope, require_writer
from deltahub.registry.access.permissions import full_name
from deltahub.registry.db.models import Repository, User, utc_now
from deltahub.registry.db.session import WriteSession
from deltahub.registry.db.tables.comparisons import Upgrade, UpgradedAdapter
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import Conflict, Forbidden, RegistryError
from deltahub.registry.jobs import queue
from deltahub.registry.reencode.withdraw import Untouched, withdraw
from deltahub.registry.registry import Registry
from deltahub.registry.upgrades.adapters import may_decide
from deltahub.registry.upgrades.ends import note_ends
from deltahub.registry.upgrades.plans import forget_task, rows_of, settle
from deltahub.registry.upgrades.shown import load_upgrade, shown_name


@dataclass(frozen=True)
class Kept:
    """A result that stays where it is. adapter: that it was made from."""

    adapter: str
    result: str | None
    why: str


@dataclass(frozen=True)
class PutBack:
    """What came of putting an upgrade back. deleted: names of results; cancelled: adapters whose
    move was stopped. n_others: adapters on which the caller may not decide.
    """

    deleted: Sequence[str]
    cancelled: Sequence[str]
    kept: Sequence[Kept]
    n_others: int


def put_back(reg: Registry, caller: Caller | None, upgrade_id: int) -> PutBack:
    """Stop the moves of an upgrade, and delete what they made. Again, it does what is left to do.

    A result stays that somebody has committed to, tagged, branched or given a kit since, or that
    the caller may not delete; and for now one that other models need, until a job has stored them
    without it. UpgradeNotFound; Forbidden if the caller may decide on none of the
    adapters.
    """
    user = require_writer(caller)
    note_ends(reg)
    cancelled: list[str] = []
    with reg.db.write_beside() as session:
        upgrade = load_upgrade(session, user, upgrade_id)
        rows = rows_of(session, upgrade.id)
        own = [row for row in rows if may_decide(session, user, row.namespace_id)]
        if rows and not own:
            raise Forbidden(f"{user.name} may write to no namespace of these adapters")
        for row in own:
            if _stop(session, user, row):
                cancelled.append(shown_name(session, user, row))
        session.flush()
        settle(session, upgrade)
        published = [row.id for row in own if row.state == "published"]
        detail = {"upgrade": upgrade.id, "results": len(published)}
        audit.append(session, user, "upgrade.put_back", upgrade.new_name, detail)
        n_others = len(rows) - len(own)
    deleted: list[str] = []
    kept: list[Kept] = []
    for row_id in published:
        name, why = _take_back(reg, user, row_id)
        if why is not None:
            kept.append(why)
        elif name is not None:
            deleted.append(name)
    return PutBack(deleted, cancelled, kept, n_others)


def take_back_late(reg: Registry, row_id: int) -> None:
    """Delete a result that its job published after the row was put back, for who did that."""
    with reg.db.read() as session:
        row = session.get(UpgradedAdapter, row_id)
        user = None if row is None or row.user_id is None else session.get(User, row.user_id)
        if row is None or user is None:
            return
        scope: Scope = "admin" if row.scope == "admin" else "write"
    _take_back(reg, Caller(user.id, user.name, user.is_admin, scope), row_id)


def _stop(session: WriteSession, user: Caller, row: UpgradedAdapter) -> bool:
    """Stop what waits or runs; whether a move was stopped."""
    if row.state == "proposed":
        row.state = "rejected"
    elif row.state in ("approved", "running"):
        job = None if row.job_id is None else session.get(Job, row.job_id, with_for_update=True)
        if job is not None:
            # One that publishes nevertheless is noted later, and put back then.
            queue.ask_to_stop(session, job)
        row.state, row.why = "put_back", None
        row.user_id, row.scope = user.user_id, user.scope
        forget_task(row)
        row.changed_at = utc_now()
        return True
    else:
        return False
    row.changed_at = utc_now()
    return False


def _take_back(reg: Registry, caller: Caller, row_id: int) -> tuple[str | None, Kept | None]:
    """(the name of the result that was deleted, why it was not)"""
    with reg.db.read() as session:
        row = session.get(UpgradedAdapter, row_id)
        if row is None or row.state != "published":
            return None, None
        adapter = shown_name(session, caller, row)
        row_of = row.result_repository_id
        found = None if row_of is None else session.get(Repository, row_of)
        name = None if found is None else full_name(session, found)
        commit = row.result_commit
    if name is None or row_of is None:
        _mark(reg, row_id, "its result was deleted before")
        return None, None
    try:
        if commit is None:
            raise Conflict("somebody has changed it since")
        waits = withdraw(reg, caller, name, "delete", Untouched(row_of, commit))
        if waits is None:
            _mark(reg, row_id, None)
            return name, None
        why = f"the job {waits.job_id} deletes it once other models are stored without it"
        is_there = _stay(reg, row_id, row_of, why, waits.job_id)
    except RegistryError as error:
        why = str(error)
        is_there = _stay(reg, row_id, row_of, f"not put back: {error}")
    return None, Kept(adapter, name, why) if is_there else None


def _stay(
    reg: Registry, row_id: int, result_id: int, why: str, deletion_id: str | None = None
) -> bool:
    """Note why the result is there; False if it is not, because somebody else has just put it back
    or deleted it. deletion_id: the job that deletes it; ends.py notes its end.
    """
    with reg.db.write_beside() as session:
        row = session.get(UpgradedAdapter, row_id, with_for_update=True)
        if row is None or (row.state, row.result_repository_id) != ("published", result_id):
            return False
        row.why, row.deletion_id = why[:2000], deletion_id or row.deletion_id
        return True


def _mark(reg: Registry, row_id: int, why: str | None) -> None:
    with reg.db.write_beside() as session:
        row = session.get(UpgradedAdapter, row_id, with_for_update=True)
        # Somebody else may have put it back in this moment, and it may have moved again since.
        if row is not None and (row.state, row.result_repository_id) == ("published", None):
            row.state, row.why, row.changed_at = "put_back", why, utc_now()
            row.job_id = row.deletion_id = None
            forget_task(row)
            settle(session, session.get_one(Upgrade, row.upgrade_id))

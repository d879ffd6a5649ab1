"""The job `upgrade_base`: its steps, in their order.

1. Check both bases, and find the adapters of the old one (planning.py).
2. Plan the move of each, some at a time; find those of one task (families.py).
3. Write the plan. With the policy auto its moves are approved at once; the worker begins them
   (registry/upgrades/running.py), and this job does not wait for them.

result {"upgrade", "policy", "n_planned", "n_kept", "moves", "skipped", "n_more"}: upgrade is the id
of the upgrade, None of a dry run and where nothing can move.
"""

from typing import Any, Final

from deltahub.methods.kinds.bases.upgrade_base import UpgradeBaseArguments
from deltahub.registry.access.permissions import full_name
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.results.asked import granted
from deltahub.registry.upgrades.decisions import reject_open
from deltahub.registry.upgrades.plans import PlannedMove, write_plan
from deltahub.registry.upgrades.rules import AUTO, OFF, policy_in_force, set_policy
from deltahub.workers.context import JobContext
from deltahub.workers.jobs.upgrades.families import share

_STEPS: Final = "deltahub.workers.jobs.upgrades.planning"
_FAMILIES: Final = "deltahub.workers.jobs.upgrades.families"
# The steps above, as whoever waits is told.
_N_STEPS: Final = 3
# Shares of the job: until both bases are loaded, and until all moves are planned.
_LOADED, _PLANNED = 0.1, 0.95


def upgrade_base(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Run the job. payload: as registry/results/asked.py writes it."""
    arguments = UpgradeBaseArguments.model_validate(payload["arguments"])
    policy: str = context.step("read the policy", lambda: _policy(context, arguments))
    if policy == OFF and not arguments.dry_run:
        return context.step("propose no more", lambda: _turn_off(context, arguments))
    context.begin_step(1, _N_STEPS)
    found = context.compute("look at the bases", f"{_STEPS}:check", {}, (0, _LOADED))
    context.begin_step(2, _N_STEPS)
    moves: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = list(found["skipped"])
    asked = {"adapters": found["adapters"]}
    for done in context.compute_parts(f"{_STEPS}:plan_some", asked, (_LOADED, _PLANNED)):
        moves += done["moves"]
        skipped += done["skipped"]
    at = (_PLANNED, _PLANNED)
    pools = context.compute("find pools", f"{_FAMILIES}:find", {"moves": moves}, at)
    moves = share(moves, pools)
    told = {
        "policy": policy,
        "moves": [_told(each) for each in moves],
        "skipped": skipped,
        "n_more": found["n_more"],
    }
    if arguments.dry_run:
        return {"upgrade": None, "n_planned": len(moves), "n_kept": 0, **told}
    context.begin_step(3, _N_STEPS)
    written = context.step("write the plan", lambda: _write(context, arguments, moves, policy))
    result = written | told
    context.step("tell", lambda: context.log(_sentence_of(result)))
    return result


def _sentence_of(result: dict[str, Any]) -> str:
    """What a person should know of a result."""
    if result["upgrade"] is None:
        return "the old base has no adapter that you may move"
    begun = "; those that can move begin now" if result["policy"] == AUTO else ""
    n = result["n_planned"]
    adapters = "1 adapter is" if n == 1 else f"{n} adapters are"
    return f"upgrade {result['upgrade']}: {adapters} planned{begun}"


def _policy(context: JobContext, arguments: UpgradeBaseArguments) -> str:
    if arguments.policy is not None:
        return arguments.policy
    old = granted(context.registry, context.job_id).revisions[1]
    with context.registry.db.read() as session:
        row = session.get_one(Revision, old).repository_id
        return policy_in_force(session, session.get_one(Repository, row)).policy


def _turn_off(context: JobContext, arguments: UpgradeBaseArguments) -> dict[str, Any]:
    grant = granted(context.registry, context.job_id)
    with context.registry.db.read() as session:
        row = session.get_one(Revision, grant.revisions[1]).repository_id
        name = full_name(session, session.get_one(Repository, row))
    if arguments.policy == OFF:
        set_policy(context.registry, grant.caller, name, OFF)
    n_rejected = reject_open(context.registry, grant.caller, row)
    context.log(f"no upgrade of {name} is proposed any more; {n_rejected} adapters were rejected")
    return {
        "upgrade": None, "policy": OFF, "n_planned": 0, "n_kept": 0, "moves": [], "skipped": [],
        "n_more": 0,
    }  # fmt: skip


def _write(
    context: JobContext, arguments: UpgradeBaseArguments, moves: list[dict[str, Any]], policy: str
) -> dict[str, Any]:
    grant = granted(context.registry, context.job_id)
    new, old = grant.revisions
    planned = [PlannedMove(**each) for each in moves]
    written = write_plan(
        context.registry, grant.caller, (old, new), planned, policy, arguments.source
    )
    return {
        "upgrade": written.upgrade_id,
        "n_planned": written.n_planned,
        "n_kept": written.n_kept,
    }


def _told(move: dict[str, Any]) -> dict[str, Any]:
    """What the job's result says of a move."""
    plan = move["plan"]
    keys = ("rungs", "seconds", "memory_bytes", "device", "missing", "notes", "why_not")
    return {
        "adapter": plan["adapter"],
        "result": move["arguments"]["name"],
        "teacher": plan["teacher"],
        **{key: plan.get(key) for key in keys},
    }

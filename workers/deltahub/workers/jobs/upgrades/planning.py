"""The steps of the job `upgrade_base` that look at models."""

import time
from dataclasses import dataclass
from typing import Any, Final

from deltahub.methods.errors import CannotTransfer, MethodError
from deltahub.methods.kinds.bases.upgrade_base import UpgradeBaseArguments
from deltahub.methods.kinds.transfer_adapter import TransferAdapterArguments
from deltahub.methods.transfer.estimate import TransferEstimate
from deltahub.registry.access.permissions import full_name
from deltahub.registry.adapters.reports import shown_report
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.errors import DataLost, Forbidden, InvalidRequest, NotFound
from deltahub.registry.results.asked import Granted, granted
from deltahub.registry.upgrades.adapters import FoundAdapter, find_adapters, is_ingested
from deltahub.registry.upgrades.plans import free_name, require_pair
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.transfer.check import device_for, estimate_of, require_causal
from deltahub.workers.jobs.transfer.inputs import inputs_of, load_base
from deltahub.workers.jobs.upgrades.teachers import Teacher, find_teacher

# A step that plans ends after so long, so that little is lost when it is killed.
_STEP_S: Final = 30.0


@dataclass(frozen=True)
class _Bases:
    grant: Granted
    arguments: UpgradeBaseArguments
    new: Revision
    old: Revision
    new_name: str


def check(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"adapters": rows of their revisions, "skipped": [{adapter, why}], "n_more"}.

    CannotTransfer for bases that no job can run.
    """
    bases = _bases(context)
    require_pair(bases.old, bases.new)
    models = [load_base(context, each.id) for each in (bases.old, bases.new)]
    device_for(context, bases.arguments.device)
    require_causal(context, *models)
    with context.registry.db.read() as session:
        found, n_more = find_adapters(session, bases.grant.caller, bases.old, bases.new)
    return {
        "adapters": [each.revision.id for each in found if each.why_skipped is None],
        "skipped": [
            {"adapter": each.name, "why": each.why_skipped}
            for each in found
            if each.why_skipped is not None
        ],
        "n_more": n_more,
    }


def plan_some(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: plans from number `first` on. arguments: adapters, first.

    {"next": number of the first that is left, or None, "moves": fields of PlannedMove, "skipped"}
    """
    bases = _bases(context)
    rows: list[int] = arguments["adapters"]
    with context.registry.db.read() as session:
        found, _ = find_adapters(session, bases.grant.caller, bases.old, bases.new)
    by_row = {each.revision.id: each for each in found if each.why_skipped is None}
    moves: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    began, place = time.monotonic(), arguments["first"]
    while place < len(rows) and (not moves or time.monotonic() - began < _STEP_S):
        adapter = by_row.get(rows[place])
        place += 1
        context.report("plan the moves", place, len(rows))
        if adapter is None:
            continue  # deleted, or pushed again, meanwhile
        move = _plan(context, bases, adapter)
        if isinstance(move, str):
            skipped.append({"adapter": adapter.name, "why": move})
        else:
            moves.append(move)
    return {"next": place if place < len(rows) else None, "moves": moves, "skipped": skipped}


def _plan(context: ComputeContext, bases: _Bases, adapter: FoundAdapter) -> dict[str, Any] | str:
    """The fields of PlannedMove; or why there is none."""
    teacher = find_teacher(context, bases.grant.caller, adapter)
    arguments = _arguments(context, bases, adapter, teacher)
    inputs = {"adapter": teacher.revision.id, "base": bases.new.id, "source_base": teacher.base.id}
    plan: dict[str, Any] = {
        "adapter": f"{adapter.name}@{adapter.revision.commit}",
        "teacher": arguments.adapter,
        "notes": list(teacher.notes),
    }
    plan |= _cost(context, bases, arguments, inputs)
    return {
        "repository_id": adapter.repository.id,
        "revision_id": adapter.revision.id,
        "arguments": arguments.model_dump(mode="json"),
        "inputs": inputs,
        "plan": plan,
    }


def _arguments(
    context: ComputeContext, bases: _Bases, adapter: FoundAdapter, teacher: Teacher
) -> TransferAdapterArguments:
    given = bases.arguments
    namespace, _, short = adapter.name.partition("/")
    with context.registry.db.read() as session:
        old_name = full_name(session, session.get_one(Repository, bases.old.repository_id))
        stem = short.removesuffix(f"-{old_name.partition('/')[2]}") or short
        name = free_name(session, namespace, f"{stem}-{bases.new_name.partition('/')[2]}")
        is_private = adapter.repository.is_private
    return TransferAdapterArguments(
        adapter=teacher.title,
        base=f"{bases.new_name}@{bases.new.commit}",
        name=name,
        source_base=teacher.base_title,
        rungs=given.rungs,
        n=given.n,
        max_loss=given.max_loss,
        epochs=given.epochs,
        learning_rate=given.learning_rate,
        seed=given.seed,
        device=given.device,
        # A public result would tell of an adapter that is private, even if its teacher is public.
        private=True if is_private else None,
    )


def _cost(
    context: ComputeContext,
    bases: _Bases,
    arguments: TransferAdapterArguments,
    inputs: dict[str, int],
) -> dict[str, Any]:
    """The parts of a plan that say what applies, what it costs, and what is missing."""
    why = _why_not(context, bases, inputs["adapter"], arguments)
    if why is None:
        rows = (inputs["adapter"], inputs["base"], inputs["source_base"])
        try:
            loaded = inputs_of(context, bases.grant, arguments, rows)
            estimate = estimate_of(context, loaded, device_for(context, arguments.device))
        except (MethodError, DataLost, InvalidRequest, Forbidden, NotFound) as error:
            why = str(error)
        else:
            told = _told(estimate, bases.new_name)
            # Whoever approves it may show its task by some inputs.
            return told | {"needs_prompts": not loaded.seeds}
    return {"rungs": [], "missing": [why], "why_not": why}


def _told(estimate: TransferEstimate, new_name: str) -> dict[str, Any]:
    told = estimate.model_dump(mode="json")
    kept = ("rungs", "seconds", "drawing_seconds", "memory_bytes", "device", "missing")
    found: dict[str, Any] = {key: told[key] for key in kept}
    if not estimate.possible:
        reasons = dict.fromkeys(each.why_not for each in estimate.rungs if each.why_not is not None)
        found["why_not"] = "; ".join(map(str, reasons)) or "no way is left to try"
    try:
        estimate.require_memory(new_name)
    except CannotTransfer as error:
        found["why_not"] = str(error)
    return found


def _why_not(
    context: ComputeContext, bases: _Bases, row: int, arguments: TransferAdapterArguments
) -> str | None:
    """What its report says against an adapter."""
    with context.registry.db.read() as session:
        report = shown_report(session, bases.grant.caller, row)
        if not is_ingested(session, row):
            return "its files wait for their ingest: plan again when that is done"
    if report is None:
        return None
    if report["state"] in ("quarantined", "broken"):
        faults = "; ".join(report["faults"]) or report["why"]
        return f"{arguments.adapter} is {report['state']}: {faults}. {report['way_out']}"
    if report["state"] == "convertible":
        name = arguments.adapter.partition("@")[0]
        return (
            f"it was started by {report['init']}, which changed its base: convert it to a plain"
            f" LoRA first (deltahub adapter convert {name})"
        )
    return None


def _bases(context: ComputeContext) -> _Bases:
    """Both, if the job's user may still read them."""
    grant = granted(context.registry, context.job_id)
    arguments = UpgradeBaseArguments.model_validate(grant.arguments)
    with context.registry.db.read() as session:
        new, old = (session.get_one(Revision, row) for row in grant.revisions)
        name = full_name(session, session.get_one(Repository, new.repository_id))
    return _Bases(grant, arguments, new, old, name)

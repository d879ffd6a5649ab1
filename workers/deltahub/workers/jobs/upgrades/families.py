"""Adapters of one task in an upgrade: the inputs that teach and measure them are made up once."""

from collections.abc import Sequence
from typing import Any

from deltahub.methods.transfer.families import leaders, pool_of
from deltahub.methods.transfer.kit import TransferKit
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.errors import NotFound
from deltahub.registry.results.asked import granted
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.transfer.inputs import load_base
from deltahub.workers.jobs.transfer.kits import usable_kit_of

Move = dict[str, Any]
"""the fields of PlannedMove, as planning.py tells them"""


def find(context: ComputeContext, arguments: dict[str, Any]) -> list[list[int] | None]:
    """Step: for each of `moves` the places of those from whose kits its inputs are made up, of
    which the first one begins; None for a move that makes up its own.

    Only adapters of one namespace share them, all of which are private or all public, so that no
    input and no result tells anybody of an adapter that he may not read.
    """
    kits = [_kit(context, each) for each in arguments["moves"]]
    found = leaders(kits)
    plain = [None if each is None else each[1] for each in kits]
    pools = {each: pool_of(plain, found, each) for each in {*found} if each is not None}
    return [None if each is None else pools[each] for each in found]


def share(moves: Sequence[Move], found: Sequence[Sequence[int] | None]) -> list[Move]:
    """The moves with their pools. found: of the step above."""
    return [_shared(moves, place, pool) for place, pool in enumerate(found)]


def _shared(moves: Sequence[Move], place: int, pool: Sequence[int] | None) -> Move:
    move = moves[place]
    if pool is None:
        return move
    first, plan = moves[pool[0]], dict(move["plan"])
    plan["pool"] = [moves[each]["inputs"]["adapter"] for each in pool]
    if pool[0] != place:
        name = first["plan"]["adapter"].partition("@")[0]
        plan["seconds"] -= plan.get("drawing_seconds", 0)
        plan["notes"] = [
            *plan["notes"],
            f"its kit shows the same task as that of {name}: inputs are made up once for both, and"
            " it begins when that move is over",
        ]
    return move | {
        "arguments": move["arguments"]
        | {"pool": [moves[each]["arguments"]["adapter"] for each in pool]},
        "plan": plan,
        "waits_for_id": None if pool[0] == place else first["repository_id"],
    }


def _kit(context: ComputeContext, move: Move) -> tuple[tuple[int, bool], TransferKit] | None:
    """(namespace and privacy, the kit) of a move that can use one."""
    if move["plan"].get("why_not") is not None:
        return None
    rows = move["inputs"]
    with context.registry.db.read() as session:
        teacher = session.get(Revision, rows["adapter"])
        adapter = session.get(Repository, move["repository_id"])
        if teacher is None or adapter is None:
            return None  # deleted meanwhile
        owner = session.get_one(Repository, teacher.repository_id)
        if owner.namespace_id != adapter.namespace_id or owner.is_private != adapter.is_private:
            return None
        group = (owner.namespace_id, owner.is_private)
    caller = granted(context.registry, context.job_id).caller
    try:
        kit = usable_kit_of(context, caller, owner.id, load_base(context, rows["source_base"]))
    except NotFound:
        return None
    return None if isinstance(kit, str) or kit.fault is not None else (group, kit.kit)

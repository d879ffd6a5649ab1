"""Pools: inputs that a new base made up for several adapters of one task.

What a call of the base makes up follows from the kit whose seeds it shows, the base, the seed of
the random numbers and the number of the call. So a pool only saves time: without it a move makes up
the same inputs. It can be deleted at any time, and is when its kit or its base is, when an upgrade
to the base is over, and after a week.
"""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import ColumnElement, and_, delete, select

from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import Revision, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.comparisons import AdapterKit, PooledInputs
from deltahub.registry.errors import Conflict
from deltahub.registry.registry import Registry

LONGEST: Final = timedelta(days=7)
# Of one pool. What does not fit is made up again by each move.
MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Pool:
    """Which inputs belong together. seed: of the random numbers. device: cpu or cuda, which round
    in another way.
    """

    kit_id: str
    base_revision_id: int
    seed: int
    device: str


def pooled_call(reg: Registry, pool: Pool, call: int) -> list[str] | None:
    """The inputs of a call, for workers alone; None if no move has kept them.

    NOT checked: whether the job's user may write to the repository of the kit.
    """
    with reg.db.read() as session:
        return _kept(session, pool, call)


@retried
def keep_call(reg: Registry, pool: Pool, call: int, inputs: list[str]) -> list[str]:
    """Keep the inputs of a call for other moves; those that another move has kept meanwhile, which
    are the same unless another machine made them up.

    Conflict if the kit was deleted or replaced.
    """
    size = len(json.dumps(inputs).encode())
    with reg.db.write_beside(f"pool {pool.kit_id}") as session:
        if session.get(AdapterKit, pool.kit_id) is None:
            raise Conflict(
                "the kit from which inputs are made up was deleted or replaced: start a new move"
            )
        known = _kept(session, pool, call)
        if known is not None:
            return known
        if session.get(Revision, pool.base_revision_id) is None:
            return inputs  # the next step of the job says that the base is gone
        old = delete(PooledInputs).where(PooledInputs.created_at < utc_now() - LONGEST)
        session.execute(old.execution_options(synchronize_session=False))
        kept = session.scalar(select(total(PooledInputs.size)).where(_is_of(pool))) or 0
        if kept + size <= MOST_BYTES:
            row = PooledInputs(**vars(pool), call=call, made={"inputs": inputs}, size=size)
            session.add(row)
    return inputs


def delete_pools(session: WriteSession, base_repository_id: int | None) -> None:
    """Delete all pools of a base, of any of its commits."""
    of_base = select(Revision.id).where(Revision.repository_id == base_repository_id)
    gone = delete(PooledInputs).where(PooledInputs.base_revision_id.in_(of_base))
    session.execute(gone.execution_options(synchronize_session=False))


def _kept(session: ReadSession, pool: Pool, call: int) -> list[str] | None:
    query = select(PooledInputs.made).where(_is_of(pool), PooledInputs.call == call)
    found = session.scalar(query)
    return None if found is None else list(found["inputs"])


def _is_of(pool: Pool) -> ColumnElement[bool]:
    return and_(
        PooledInputs.kit_id == pool.kit_id,
        PooledInputs.base_revision_id == pool.base_revision_id,
        PooledInputs.seed == pool.seed,
        PooledInputs.device == pool.device,
    )

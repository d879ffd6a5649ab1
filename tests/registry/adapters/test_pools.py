"""Inputs that several moves share: kept once, bounded, and gone with their kit, base or upgrade."""

from datetime import timedelta

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.adapters import pools
from deltahub.registry.adapters.kits import delete_kit
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import utc_now
from deltahub.registry.db.tables.comparisons import AdapterKit, PooledInputs
from deltahub.registry.errors import Conflict
from support.adapters.kits import ADAPTER, discriminator, push_adapter, put
from support.registry.opened import push


@pytest.fixture
def pool(reg: Registry, ann: Caller) -> pools.Pool:
    """Of a kit, and of a newer base."""
    data, found = push_adapter(reg, ann), discriminator()
    put(reg, ann, data, found)
    push(reg, ann, "ann/newer", {"model.safetensors": b"x"})
    with reg.db.read() as session:
        kit = session.query(AdapterKit).one().id
        base = load_repository(session, ann, "ann/newer").head_id
    assert base is not None
    return pools.Pool(kit, base, 7, "cpu")


def n_kept(reg: Registry) -> int:
    with reg.db.read() as session:
        return session.query(PooledInputs).count()


def test_what_one_move_made_up_is_there_for_the_next(reg: Registry, pool: pools.Pool) -> None:
    assert pools.pooled_call(reg, pool, 0) is None
    assert pools.keep_call(reg, pool, 0, ["a", "b"]) == ["a", "b"]
    assert pools.keep_call(reg, pool, 1, []) == []
    assert pools.pooled_call(reg, pool, 0) == ["a", "b"]
    assert pools.pooled_call(reg, pool, 1) == []
    # Two moves that make the same call up go on with the same inputs.
    assert pools.keep_call(reg, pool, 0, ["c"]) == ["a", "b"]
    others = [
        pools.Pool(pool.kit_id, pool.base_revision_id, 8, "cpu"),
        pools.Pool(pool.kit_id, pool.base_revision_id, 7, "cuda"),
    ]
    assert all(pools.pooled_call(reg, each, 0) is None for each in others)


def test_a_pool_goes_with_its_kit_and_then_cannot_grow(
    reg: Registry, ann: Caller, pool: pools.Pool
) -> None:
    pools.keep_call(reg, pool, 0, ["a"])
    delete_kit(reg, ann, ADAPTER)
    assert n_kept(reg) == 0
    with pytest.raises(Conflict, match="was deleted or replaced: start a new move"):
        pools.keep_call(reg, pool, 1, ["b"])


def test_a_pool_goes_with_its_base(reg: Registry, ann: Caller, pool: pools.Pool) -> None:
    pools.keep_call(reg, pool, 0, ["a"])
    delete_repository(reg, ann, "ann/newer")
    assert n_kept(reg) == 0
    assert pools.keep_call(reg, pool, 1, ["b"]) == ["b"]
    assert n_kept(reg) == 0


def test_a_pool_is_kept_for_a_week_and_bounded(reg: Registry, pool: pools.Pool) -> None:
    pools.keep_call(reg, pool, 0, ["a"])
    with reg.db.write() as session:
        session.query(PooledInputs).one().created_at = utc_now() - timedelta(days=8)
    pools.keep_call(reg, pool, 1, ["b"])
    assert [pools.pooled_call(reg, pool, call) for call in (0, 1)] == [None, ["b"]]
    with reg.db.write() as session:
        session.query(PooledInputs).one().size = pools.MOST_BYTES - 4
    # What does not fit is made up again by each move.
    assert pools.keep_call(reg, pool, 2, ["ccc"]) == ["ccc"]
    assert pools.pooled_call(reg, pool, 2) is None

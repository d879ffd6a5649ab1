"""A run of checkpoints costs its steps, and reading one stays bounded."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sqlalchemy import func, select

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Frame
from deltahub.registry.packs.locations import closure
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested, read_file, stored_tensors
from support.registry.opened import caller, opened_registry

N_CHECKPOINTS = 22
MATRICES = ("embedding.weight", "up.weight", "down.weight", "head.weight")


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


@pytest.fixture(scope="module")
def checkpoints() -> list[bytes]:
    """A fine-tune's weights after every few steps of training, as BF16."""
    return [
        tiny.to_file(tiny.cast(tensors, torch.bfloat16))
        for tensors in tiny.checkpoints(N_CHECKPOINTS)
    ]


def stored_bytes(reg: Registry, tensors: set[int] | None = None) -> int:
    query = select(func.sum(Frame.length))
    with reg.db.read() as session:
        return session.scalar(
            query if tensors is None else query.where(Frame.tensor_id.in_(tensors))
        )


def bytes_to_read(reg: Registry, revision: int) -> int:
    """Stored bytes that a reader of all weights of the revision needs."""
    ids = {stored.id for stored in stored_tensors(reg, revision).values()}
    with reg.db.read() as session:
        return stored_bytes(reg, set(closure(session, ids)))


@pytest.mark.parametrize("base", ["ann/base", None])
def test_the_nth_checkpoint_costs_its_step(
    reg: Registry, ann: Caller, checkpoints: list[bytes], base: str | None
) -> None:
    first = {"model.safetensors": tiny.to_file(tiny.cast(tiny.base(), torch.bfloat16))}
    push_ingested(reg, ann, "ann/base", first)
    added, read, depths = [], [], set()
    before = stored_bytes(reg)
    for data in checkpoints:
        revision = push_ingested(reg, ann, "ann/run", {"model.safetensors": data}, base=base)
        assert read_file(reg, revision, "model.safetensors") == data
        now = stored_bytes(reg)
        added.append(now - before)
        before = now
        read.append(bytes_to_read(reg, revision) / len(data))
        depths |= {stored_tensors(reg, revision)[name].depth for name in MATRICES}
    step = sorted(added[1:8])[3]
    assert sum(added[8:]) <= 1.5 * step * len(added[8:])
    assert sorted(added)[len(added) // 2] <= 1.2 * step
    assert sum(read) / len(read) <= 1.5
    assert max(read) <= 3
    assert max(depths) == reg.settings.max_depth

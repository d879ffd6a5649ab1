"""A client sends the difference from what it has; the hub keeps its chains of deltas short."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import aliased

from deltahub.codecs.ids import tensor_id
from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Tensor, TensorBase
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.uploads import client_packs
from support.registry.client_packs import frames_of, near, send_pack, weights
from support.registry.ingested import push_ingested
from support.registry.opened import caller, ensure_repository, opened_registry

BASE = weights(40_000)


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture(params=[True, False], ids=["private", "public"])
def ann(reg: Registry, request: pytest.FixtureRequest) -> Caller:
    """Has BASE in a file, and a repository ann/m."""
    who = caller(reg, "ann")
    push_ingested(reg, who, "ann/base", {"a.bin": BASE})
    ensure_repository(reg, who, "ann/m", private=request.param)
    return who


def limit_depth(reg: Registry, max_depth: int) -> None:
    reg.settings = reg.settings.model_copy(update={"max_depth": max_depth})


def depths(reg: Registry, *tensors: bytes) -> list[int]:
    with reg.db.read() as session:
        query = select(Tensor.depth)
        return [
            session.scalars(query.where(Tensor.hash == tensor_id(data))).one() for data in tensors
        ]


def bases(reg: Registry, *tensors: bytes) -> list[set[bytes]]:
    """The content ids of the tensors' bases."""
    with reg.db.read() as session:
        query = select(Tensor.hash).join(TensorBase, TensorBase.base_id == Tensor.id)
        own = aliased(Tensor)
        query = query.join(own, own.id == TensorBase.tensor_id)
        return [set(session.scalars(query.where(own.hash == tensor_id(data)))) for data in tensors]


def stored(reg: Registry, *tensors: bytes) -> list[bytes]:
    """The bytes of the tensors as a reader gets them."""
    found = []
    for data in tensors:
        with reg.db.read() as session:
            row = session.scalars(select(Tensor).where(Tensor.hash == tensor_id(data))).one()
        out = bytearray(len(data))
        FileReader(reg).read_tensor_into(row.id, 0, memoryview(out))
        found.append(bytes(out))
    return found


def test_a_delta_that_is_too_deep_becomes_one_of_the_root(reg: Registry, ann: Caller) -> None:
    limit_depth(reg, 2)
    chain = [BASE, *(near(BASE, seed) for seed in range(1, 5))]
    for base, data in pairwise(chain):
        send_pack(reg, ann, "ann/m", frames_of(data, base))
    assert depths(reg, *chain[1:]) == [1, 2, 1, 2]
    assert stored(reg, *chain[1:]) == chain[1:]


def test_a_root_that_is_of_no_use_is_no_base(reg: Registry, ann: Caller) -> None:
    limit_depth(reg, 1)
    unrelated = weights(len(BASE) // 2, seed=9)
    tuned = near(unrelated)
    send_pack(reg, ann, "ann/m", frames_of(unrelated, BASE))
    send_pack(reg, ann, "ann/m", frames_of(tuned, unrelated))
    # A public repository stores no useless delta, so that the second tensor becomes one.
    assert sorted(depths(reg, unrelated, tuned)) == [0, 1]
    assert stored(reg, unrelated, tuned) == [unrelated, tuned]


def test_a_hub_without_deltas_takes_them_all_the_same(reg: Registry, ann: Caller) -> None:
    limit_depth(reg, 0)
    tuned = near(BASE)
    send_pack(reg, ann, "ann/m", frames_of(tuned, BASE))
    assert depths(reg, tuned) == [0]
    assert stored(reg, tuned) == [tuned]


def test_other_tensors_of_the_same_pack_stay_as_they_came(reg: Registry, ann: Caller) -> None:
    limit_depth(reg, 1)
    first, second, third = (near(BASE, seed) for seed in range(1, 4))
    send_pack(reg, ann, "ann/m", frames_of(first, BASE))
    send_pack(reg, ann, "ann/m", frames_of(second, first) + frames_of(third, BASE))
    assert depths(reg, second, third) == [1, 1]
    assert bases(reg, second, third) == [{tensor_id(BASE)}, {tensor_id(BASE)}]
    assert stored(reg, second, third) == [second, third]


@pytest.mark.parametrize("max_depth", [0, 1])
def test_a_tensor_of_many_frames_is_encoded_again(
    reg: Registry, ann: Caller, max_depth: int
) -> None:
    limit_depth(reg, 1)
    root = weights(3 << 19)
    push_ingested(reg, ann, "ann/large", {"a.bin": root})
    base, tuned = near(root, 1), near(root, 2)
    send_pack(reg, ann, "ann/m", frames_of(base, root, max_bytes=1 << 20))
    limit_depth(reg, max_depth)
    frames = frames_of(tuned, base, max_bytes=1 << 20)
    assert len(frames) == 3
    send_pack(reg, ann, "ann/m", frames)
    assert depths(reg, tuned) == [max_depth]
    assert stored(reg, tuned) == [tuned]


def test_a_chain_whose_reader_would_read_too_much_ends(reg: Registry, ann: Caller) -> None:
    random = np.random.default_rng(0)
    chain = [BASE]
    for _ in range(6):
        steps = random.integers(0, 64, len(BASE) // 2)  # large ones
        chain.append((np.frombuffer(chain[-1], "<u2") + steps).astype("<u2").tobytes())
        send_pack(reg, ann, "ann/m", frames_of(chain[-1], chain[-2]))
    found = depths(reg, *chain[1:])
    assert found[:2] == [1, 2]
    assert any(after <= before for before, after in pairwise(found))
    assert stored(reg, *chain[1:]) == chain[1:]


def test_a_base_that_becomes_deeper_meanwhile_is_not_refused(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_depth(reg, 1)
    first, second = near(BASE, 1), near(BASE, 2)
    send_pack(reg, ann, "ann/m", frames_of(first))
    check_bases = client_packs._check_bases

    def deepen_after(*args: Any) -> Any:
        found = check_bases(*args)
        with reg.db.write() as session:
            row = Tensor.hash == tensor_id(first)
            session.execute(update(Tensor).where(row).values(depth=1))
        return found

    monkeypatch.setattr(client_packs, "_check_bases", deepen_after)
    send_pack(reg, ann, "ann/m", frames_of(second, first))
    assert depths(reg, second) == [0]
    assert stored(reg, second) == [second]

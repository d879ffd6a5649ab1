"""Adapters of one task in an upgrade: their inputs are made up once, for the first of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.adapters.kits import delete_kit
from deltahub.registry.catalog.repositories import make_private
from deltahub.registry.db.tables.comparisons import PooledInputs, UpgradedAdapter
from deltahub.registry.upgrades import decisions
from deltahub.registry.upgrades.running import advance
from support.registry.opened import caller, opened_registry
from support.transfer.running import push_world, put_teacher_kit
from support.upgrades.planned import jobs_of, moves
from support.upgrades.running import plan, push_adapter, push_bases, run_moves

COPY = {"rungs": ("copy",), "n": 30, "max_loss": 1}


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as found:
        yield found


@pytest.fixture
def ann(reg: Registry) -> Caller:
    """Two adapters whose kits have the same seeds, and one without a kit."""
    who = caller(reg, "ann")
    push_world(reg, who)
    push_bases(reg, who, "twin")
    for name in ("sibling", "other"):
        push_adapter(reg, who, f"ann/{name}", "ann/v1")
    for name in ("teacher", "sibling"):
        put_teacher_kit(reg, who, adapter=f"ann/{name}")
    return who


def pools(reg: Registry) -> dict[str, list[str] | None]:
    """Adapter -> the pool of its move, without commits."""
    with reg.db.read() as session:
        rows = session.query(UpgradedAdapter).all()
    found = {each.adapter_name: each.arguments["pool"] for each in rows}
    return {
        name: each and [text.partition("@")[0] for text in each] for name, each in found.items()
    }


def test_siblings_wait_for_the_first_and_take_its_inputs(reg: Registry, ann: Caller) -> None:
    # 30 inputs cannot show that a result loses at most 0.1 %, so the gate keeps the old adapter.
    strict = COPY | {"max_loss": 0.001}
    found = plan(reg, ann, "ann/v1", "ann/twin", policy="auto", **strict)
    # Equal seeds are shown once.
    first = ["ann/teacher"]
    assert pools(reg) == {"ann/teacher": first, "ann/sibling": first, "ann/other": None}
    told = {each["adapter"].partition("@")[0]: each for each in found["moves"]}
    assert told["ann/teacher"]["notes"] == []
    assert "the same task as that of ann/teacher" in told["ann/sibling"]["notes"][0]
    assert 0 < told["ann/sibling"]["seconds"] < told["ann/teacher"]["seconds"]

    assert advance(reg) == 1
    (job,) = jobs_of(reg, "transfer_adapter")
    assert job.payload["arguments"]["adapter"].startswith("ann/teacher@")
    assert advance(reg) == 0
    assert run_moves(reg) == 1
    # It ends, and only then does the other one begin.
    assert advance(reg) == 2
    assert run_moves(reg) == 1
    assert advance(reg) == 1
    upgrade = found["upgrade"]
    rows = moves(reg, ann, upgrade)
    assert {name: row.state for name, row in rows.items()} == {
        "ann/teacher": "kept", "ann/sibling": "kept", "ann/other": "proposed",
    }  # fmt: skip
    with reg.db.read() as session:
        assert session.query(PooledInputs).count() > 0
    decisions.reject(reg, ann, upgrade)
    with reg.db.read() as session:
        assert session.query(PooledInputs).count() == 0


def test_a_first_adapter_without_its_kit_holds_nobody_up(reg: Registry, ann: Caller) -> None:
    upgrade = plan(reg, ann, "ann/v1", "ann/twin", policy="ask", **COPY)["upgrade"]
    delete_kit(reg, ann, "ann/teacher")
    decisions.approve(reg, ann, upgrade, ["ann/sibling"])
    assert advance(reg) == 1
    (job,) = jobs_of(reg, "transfer_adapter")
    assert job.payload["arguments"]["pool"] is None


def test_a_private_adapter_shares_nothing_with_a_public_one(reg: Registry, ann: Caller) -> None:
    make_private(reg, ann, "ann/sibling")
    plan(reg, ann, "ann/v1", "ann/twin", policy="ask", **COPY)
    assert [*pools(reg).values()] == [None] * 3

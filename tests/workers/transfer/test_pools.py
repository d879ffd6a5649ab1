"""Adapters of one task share the inputs that the new base makes up for the first of them."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.kit import Seed
from deltahub.methods.transfer.report import TransferReport
from deltahub.registry import Caller, Registry
from deltahub.registry.access.organizations import add_member, create_organization
from deltahub.registry.adapters.kits import delete_kit
from deltahub.registry.db.tables.comparisons import PooledInputs
from deltahub.registry.jobs import requests
from deltahub.workers.failures import StepFailed
from support.merging.recorded import Killed, Recorded
from support.registry.opened import caller, opened_registry
from support.transfer.running import TASK, asked, push_world, put_teacher_kit, run_transfer
from support.upgrades.running import push_adapter

World = tuple[Registry, Caller]
SEEDS = {
    name: [Seed(input=each.text) for each in TASK.examples(140, 0)[first : first + 5]]
    for name, first in (("teacher", 0), ("sibling", 5))
}
# A copy is quick. What it is measured on comes from the pool.
OPTIONS: dict[str, Any] = {"rungs": ["copy"], "n": 30, "max_loss": 1}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with opened_registry(tmp_path_factory.mktemp("pools")) as reg:
        ann = caller(reg, "ann")
        push_world(reg, ann, "v2")
        push_adapter(reg, ann, "ann/sibling", "ann/v1")
        yield reg, ann


@pytest.fixture
def world(opened: World) -> World:
    """Both adapters have kits of one task, with different seeds; no inputs are made up yet."""
    for name, seeds in SEEDS.items():
        put_teacher_kit(*opened, adapter=f"ann/{name}", seeds=seeds)
    return opened


def wish(world: World, adapter: str, name: str, **options: Any) -> str:
    return asked(*world, adapter=f"ann/{adapter}", name=f"ann/{name}", **(OPTIONS | options))


def kept(reg: Registry) -> dict[int, Any]:
    """Call -> its inputs, of the only pool."""
    with reg.db.read() as session:
        return {each.call: each.made["inputs"] for each in session.query(PooledInputs)}


def log_of(world: World, job: str) -> str:
    return "\n".join(each.text for each in requests.log_of(*world, job))


def unpriced(result: dict[str, Any]) -> dict[str, Any]:
    """The report without times, which no two runs share."""
    report = json.loads(json.dumps(result["report"]))
    for each in report["rungs"]:
        each["cost"] = None
    return report | {"summary": None}


def test_a_sibling_is_measured_on_what_was_made_up_once(world: World) -> None:
    reg, _ = world
    first = wish(world, "teacher", "first", pool=["ann/teacher"])
    own = run_transfer(reg, first)
    made = kept(reg)
    assert made
    assert "answered before" not in log_of(world, first)
    # Its own pool changes nothing of a move.
    alone = run_transfer(reg, wish(world, "teacher", "alone"))
    shared, plain = unpriced(own), unpriced(alone)
    assert shared["sampling"].pop("shared") == shared["sampling"]["drawn"]
    assert plain["sampling"].pop("shared") == 0
    assert shared == plain

    second = wish(world, "sibling", "second", pool=["ann/teacher"])
    found = run_transfer(reg, second)
    report = TransferReport.model_validate(found["report"])
    assert report.sampling is not None
    assert report.sampling.shared == report.sampling.drawn > 0
    assert report.sampling.accepted > 0
    assert report.discriminator is not None
    told = re.findall(r"(\d+) of \d+ calls of the new base were answered", log_of(world, second))
    # It took all that was there, or had enough before that.
    after = kept(reg)
    assert 0 < sum(map(int, told)) <= len(made)
    assert sum(map(int, told)) == len(made) or after == made
    assert {call: after[call] for call in made} == made
    # Nobody reads what was made up from another kit, nor which one it was.
    assert found["disagreements"] == []
    text = json.dumps(found)
    assert "inputs were made up from kits of other adapters" in text
    assert "ann/teacher" not in text
    assert not any(f'"{seed.input}"' in text for seed in SEEDS["teacher"])


def test_without_the_pool_a_sibling_makes_the_same_inputs_up(world: World) -> None:
    reg, _ = world
    run_transfer(reg, wish(world, "teacher", "leading", pool=["ann/teacher"]))
    found = []
    for name in ("with-pool", "without-pool"):
        result = run_transfer(reg, wish(world, "sibling", name, pool=["ann/teacher"]))
        found.append(unpriced(result))
        with reg.db.write() as session:
            session.query(PooledInputs).delete()
    assert found[0] == found[1]


def test_a_kill_while_inputs_are_shared_changes_no_byte(world: World) -> None:
    reg, _ = world
    options = {"pool": ["ann/teacher", "ann/sibling"], "n": 20}
    steps = Recorded()
    whole = run_transfer(reg, wish(world, "sibling", "whole", **options), steps)
    n_steps = sum("round" in name or "inputs" in name for name in steps.results)
    assert n_steps > 3
    for is_late in (False, True):
        with reg.db.write() as session:
            session.query(PooledInputs).delete()
        job = wish(world, "sibling", f"killed-{is_late}", **options)
        steps = Recorded()
        steps.is_late = is_late
        for number in range(1, n_steps + 1):
            steps.dies_in = number
            with pytest.raises(Killed):
                run_transfer(reg, job, steps)
        steps.dies_in = None
        assert unpriced(run_transfer(reg, job, steps)) == unpriced(whole)


def test_an_adapter_of_another_task_goes_on_with_its_own_seeds(world: World) -> None:
    reg, ann = world
    # Its discriminator knows letters, and the pool has digits.
    put_teacher_kit(reg, ann, adapter="ann/sibling", of_words=True, n_examples=10)
    given = {"pool": ["ann/teacher"], "n": None, "budget": 40}
    result = run_transfer(reg, wish(world, "sibling", "astray", **given))
    sampling = TransferReport.model_validate(result["report"]).sampling
    assert sampling is not None
    assert 0 < sampling.shared < sampling.drawn


def test_what_cannot_be_shared_is_refused_with_the_reason(world: World) -> None:
    reg, ann = world
    create_organization(reg, "lab")
    add_member(reg, "lab", "ann", "write")
    push_adapter(reg, ann, "lab/tags", "ann/v1")
    put_teacher_kit(reg, ann, adapter="lab/tags")

    def refused(why: str, pool: str) -> None:
        with pytest.raises(StepFailed, match=why):
            run_transfer(reg, wish(world, "sibling", "refused", pool=[pool]))

    refused("only within the namespace of ann/sibling: leave pool out", "lab/tags")
    put_teacher_kit(reg, ann, contract=Contract(prompt="{input}:"))
    refused("have different contracts", "ann/teacher")
    delete_kit(reg, ann, "ann/teacher")
    refused("pool: ann/teacher has no kit", "ann/teacher")
    put_teacher_kit(reg, ann)
    delete_kit(reg, ann, "ann/sibling")
    refused("ann/sibling has none that fits .*no kit", "ann/teacher")


def test_the_kit_of_a_pool_that_goes_while_a_job_runs_ends_it(world: World) -> None:
    reg, ann = world
    job, steps = wish(world, "sibling", "gone", pool=["ann/teacher"]), Recorded()
    steps.dies_in = 4
    with pytest.raises(Killed):
        run_transfer(reg, job, steps)
    steps.dies_in = None
    put_teacher_kit(reg, ann)
    with pytest.raises(StepFailed, match="one of its pool, was replaced or deleted while the job"):
        run_transfer(reg, job, steps)

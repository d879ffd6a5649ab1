"""What a move may be asked for: a compressed old base, a student of another kind, a fresh start."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from deltahub.methods.adapters.lora import CONFIG_FILE
from deltahub.methods.transfer.report import TransferReport
from deltahub.registry import Caller, Registry
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.jobs import requests
from support.registry.ingested import read_file
from support.registry.opened import caller, opened_registry
from support.transfer.running import asked_with_prompts, push_world, run_transfer

World = tuple[Registry, Caller]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with opened_registry(tmp_path_factory.mktemp("options")) as reg:
        ann = caller(reg, "ann")
        push_world(reg, ann, "v2")
        yield reg, ann


def move(world: World, name: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """(the job, its result)"""
    job = asked_with_prompts(*world, name=f"ann/{name}", max_loss=1, **({"n": 60} | options))
    return job, run_transfer(world[0], job)


def lines(world: World, job: str) -> str:
    return "\n".join(each.text for each in requests.log_of(*world, job))


def test_a_compressed_old_base_changes_nothing_of_the_result(world: World) -> None:
    found = []
    for compressed in (False, True):
        name = f"packed-{compressed}"
        rungs = ["copy", "activation_map"]
        job, result = move(world, name, rungs=rungs, compressed=compressed)
        report = result["report"]
        for each in report["rungs"]:
            each["cost"] = None
        found.append([report[key] for key in ("rungs", "base_agreed", "sampling", "likeness")])
        assert ("held compressed" in lines(world, job)) == compressed
    assert found[0] == found[1]


def test_a_student_may_be_a_dora_which_starts_fresh(world: World) -> None:
    reg, ann = world
    job, result = move(world, "dora", rungs=["copy", "titok"], student="dora", epochs=25)
    report = TransferReport.model_validate(result["report"])
    titok = report.rungs[1]
    assert titok.agreed is not None
    assert titok.start is None
    assert titok.agreed.value > report.base_agreed.value
    assert "starts fresh, and not from copy, because a dora" in lines(world, job)
    # Only the best is published: ask for the student alone.
    job, result = move(world, "dora-alone", rungs=["titok"], student="dora", epochs=25, n=100)
    assert result["published"], result["reasons"]
    with reg.db.read() as session:
        row = load_repository(session, ann, "ann/dora-alone").head_id
    assert row is not None
    assert json.loads(read_file(reg, row, CONFIG_FILE))["use_dora"] is True


def test_a_fresh_start_can_be_asked_for(world: World) -> None:
    _, result = move(world, "fresh", rungs=["copy", "titok"], start="fresh", epochs=2)
    report = TransferReport.model_validate(result["report"])
    assert [each.start for each in report.rungs] == [None, None]

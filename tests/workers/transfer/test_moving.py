"""An adapter that is moved to another base, by all ways that apply."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select

from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.transfer.report import REPORT_FILE, TransferReport
from deltahub.registry import Caller, Registry
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.db.models import LineageEdge, Revision
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry
from support.transfer.running import (
    asked_with_prompts,
    base_files,
    push_world,
    run_transfer,
    teacher_files,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Registry, Caller]]:
    with opened_registry(tmp_path_factory.mktemp("world")) as reg:
        ann = caller(reg, "ann")
        push_world(reg, ann, "v2", "shuffled")
        yield reg, ann


def move(world: tuple[Registry, Caller], base: str, **options: Any) -> dict[str, Any]:
    reg, ann = world
    names = {"base": f"ann/{base}", "name": f"ann/moved-{base}"}
    return run_transfer(reg, asked_with_prompts(reg, ann, **(names | options)))


def agreement(result: dict[str, Any], rung: str) -> float:
    report = TransferReport.model_validate(result["report"])
    found = next(each for each in report.rungs if each.rung == rung)
    assert found.agreed is not None, found.why_not
    return found.agreed.value


def head(reg: Registry, who: Caller, name: str) -> Revision:
    with reg.db.read() as session:
        repository = load_repository(session, who, name)
        assert repository.head_id is not None
        return session.get_one(Revision, repository.head_id)


def test_a_copy_onto_the_same_weights_says_all_that_the_adapter_said(
    world: tuple[Registry, Caller],
) -> None:
    reg, ann = world
    push_ingested(reg, ann, "ann/twin", base_files("twin"))
    result = move(world, "twin", rungs=["copy"], n=200)
    assert result["published"], "\n".join(result["report"]["summary"])
    assert result["chosen"] == "copy"
    assert result["agreed"]["value"] == 1.0
    row = head(reg, ann, "ann/moved-twin")
    # The weights are those of the adapter, bit for bit.
    assert read_file(reg, row.id, WEIGHTS_FILE) == teacher_files("ann/v1")[WEIGHTS_FILE]
    config = json.loads(read_file(reg, row.id, CONFIG_FILE))
    base = head(reg, ann, "ann/twin")
    assert (config["base_model_name_or_path"], config["revision"]) == ("ann/twin", base.commit)
    assert row.declared_base_revision_id == base.id
    report = TransferReport.model_validate_json(read_file(reg, row.id, REPORT_FILE))
    assert report.decision.is_published
    assert report.summary[0].startswith("moved ann/teacher@")
    assert b"ann/teacher" in read_file(reg, row.id, "README.md")
    with reg.db.read() as session:
        edges = session.scalars(select(LineageEdge).where(LineageEdge.child_id == row.id)).all()
        kinds = {session.get_one(Revision, each.parent_id).id: each.kind for each in edges}
    assert kinds == {base.id: "adapter", head(reg, ann, "ann/teacher").id: "upgrade"}


def test_every_way_is_measured_and_the_best_is_published(world: tuple[Registry, Caller]) -> None:
    result = move(world, "v2", max_loss=1)
    report = TransferReport.model_validate(result["report"])
    told = {each.rung.value: each for each in report.rungs}
    assert {*told} == {"copy", "activation_map", "trans_lora", "titok"}
    assert "no kit" in str(told["trans_lora"].why_not)
    assert told["copy"].agreed is not None
    assert told["copy"].agreed.lower > report.base_agreed.upper
    # The new base was trained on from the old one, so that a student begins well as the copy.
    assert told["titok"].start == "copy"
    assert told["copy"].start is None
    assert "titok (its training began with copy): agrees" in "\n".join(report.summary)
    assert report.likeness is not None
    assert 0.9 < report.likeness.mean < 1
    assert result["published"], "\n".join(result["report"]["summary"])
    assert result["repository"] == "ann/moved-v2"
    # Whoever reads the result does not read inputs that are like the given ones.
    assert result["disagreements"]
    reg, ann = world
    stored = json.loads(read_file(reg, head(reg, ann, "ann/moved-v2").id, REPORT_FILE))
    assert stored["disagreements"] == []
    assert stored == result["report"]
    assert result["agreed"]["low"] > report.base_agreed.upper
    held_out = report.base_agreed.n
    assert held_out == 20
    assert all(each.agreed is None or each.agreed.n == held_out for each in report.rungs)


def test_what_may_lose_too_much_stays_where_it_is(world: tuple[Registry, Caller]) -> None:
    reg, ann = world
    result = move(world, "v2", name="ann/too-bad", rungs=["copy"], max_loss=0.001, n=20)
    assert not result["published"]
    assert result["repository"] is None
    assert "more than the allowed 0.1%" in result["reasons"][-1]
    assert "it stays on ann/v1@" in result["report"]["summary"][0]
    with reg.db.read() as session, pytest.raises(Exception, match="ann/too-bad"):
        load_repository(session, ann, "ann/too-bad")


def test_bases_with_different_tokens_meet_in_their_texts(world: tuple[Registry, Caller]) -> None:
    same = move(world, "v2", name="ann/same", rungs=["copy"], max_loss=1)
    other = move(world, "shuffled", max_loss=1)
    # The shuffled base says the same texts, but it draws other ones.
    assert agreement(other, "copy") == pytest.approx(agreement(same, "copy"), abs=0.3)
    assert agreement(other, "titok") > 0.2
    assert agreement(other, "activation_map") >= 0


def test_only_freeze_moves_nothing_and_says_so(world: tuple[Registry, Caller]) -> None:
    result = move(world, "v2", name="ann/frozen", rungs=["freeze"])
    assert (result["published"], result["chosen"], result["agreed"]) == (False, "freeze", None)
    assert result["reasons"] == ["only freeze was asked for, which moves nothing"]


def test_an_adapter_of_which_nothing_is_known_stays(world: tuple[Registry, Caller]) -> None:
    given = {"prompts": None, "template": "{input}", "max_new_tokens": 64}
    result = move(world, "v2", name="ann/unknown", **given)
    assert not result["published"]
    assert result["chosen"] == "freeze"
    report = TransferReport.model_validate(result["report"])
    assert all("--prompts" in str(each.why_not) for each in report.rungs if each.rung != "freeze")


def test_a_dry_run_tells_memory_and_time_of_each_way(world: tuple[Registry, Caller]) -> None:
    found = move(world, "v2", name="ann/estimated", dry_run=True)["estimate"]
    ways = {each["rung"]: each for each in found["rungs"]}
    assert ways["trans_lora"]["why_not"] is not None
    assert ways["copy"]["why_not"] is None
    assert 0 < ways["copy"]["seconds"] < ways["titok"]["seconds"]
    assert 0 < found["memory_bytes"] < found["allowed_bytes"]
    assert found["result_bytes"] > 0
    assert found["n_inputs"] == 100
    # A process that imports torch takes seconds, whatever the models are.
    assert 5 < found["seconds"] < 60

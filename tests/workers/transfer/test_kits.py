"""An adapter with a kit: inputs are made up from its seeds, and its discriminator filters them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from deltahub.methods.adapters.lora import CONFIG_FILE
from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.report import REPORT_FILE, TransferReport
from deltahub.registry import Caller, Registry
from deltahub.registry.access.organizations import add_member, create_organization
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.adapters.kits import delete_kit
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.jobs import requests
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.failures import StepFailed
from deltahub.workers.jobs.transfer.resident import Resident
from support.merging.recorded import Killed, Recorded
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry
from support.transfer.running import (
    asked,
    asked_with_prompts,
    base_files,
    discriminator_report,
    push_world,
    put_teacher_kit,
    run_transfer,
)
from support.transfer.tiny_world import old_base, tokenizer

World = tuple[Registry, Caller]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with opened_registry(tmp_path_factory.mktemp("kits")) as reg:
        ann = caller(reg, "ann")
        push_world(reg, ann, "v2")
        yield reg, ann


@pytest.fixture(autouse=True)
def kit(world: World) -> None:
    """Each test begins with a kit that fits."""
    put_teacher_kit(*world)


def moved(world: World, name: str, **options: Any) -> tuple[dict[str, Any], TransferReport]:
    reg, ann = world
    result = run_transfer(reg, asked(reg, ann, name=f"ann/{name}", **options))
    return result, TransferReport.model_validate(result["report"])


def why_not(report: TransferReport, rung: str) -> str:
    return str(next(each.why_not for each in report.rungs if each.rung == rung))


def test_all_phases_of_trans_lora(world: World) -> None:
    reg, ann = world
    result, report = moved(world, "by-kit", rungs=["trans_lora"], n=80, max_loss=1)
    assert result["published"], report.summary
    assert report.sampling is not None
    assert report.sampling.is_judged
    assert report.sampling.judged > report.sampling.accepted > 0
    assert report.distances is not None
    assert report.discriminator is not None
    assert report.discriminator.lower > 0.5
    assert report.source_accuracy == 0.97
    assert report.decision.promise is not None
    # A hash of the seeds would confirm a guess of them.
    assert "seeds" not in str(report.provenance)
    found = report.rung(report.chosen)
    assert found is not None
    assert found.agreed is not None
    assert found.agreed.lower > report.base_agreed.upper
    # Those who read the result do not read inputs that are like the private ones.
    with reg.db.read() as session:
        row = load_repository(session, ann, "ann/by-kit").head_id
    assert row is not None
    stored = TransferReport.model_validate_json(read_file(reg, row, REPORT_FILE))
    assert stored.disagreements == ()
    assert stored.rung(report.chosen) == found


def test_disagreements_are_shown_only_to_those_who_may_write_to_the_adapter(world: World) -> None:
    reg, ann = world
    eve = caller(reg, "eve")
    create_organization(reg, "lab")
    for name in ("ann", "eve"):
        add_member(reg, "lab", name, "write")
    # So few epochs leave a student that answers some inputs differently.
    given = {"rungs": ["trans_lora"], "n": 120, "max_loss": 1, "epochs": 4}
    job = asked(reg, ann, name="lab/shared", **given)
    run_transfer(reg, job)
    whole, shown = (requests.get_job(reg, each, job) for each in (ann, eve))
    assert whole.result is not None
    assert shown.result is not None
    assert whole.repository == shown.repository == "lab/shared"
    listed = whole.result["disagreements"]
    assert listed
    assert "disagreements" not in shown.result
    assert shown.result["report"] == whole.result["report"]
    assert not any(json.dumps(each["prompt"]) in json.dumps(shown.result) for each in listed)
    # The right to see them goes with the right to write to the adapter.
    reads = replace(ann, scope="read")
    (again,) = (each for each in requests.list_jobs(reg, reads) if each.id == job)
    assert again.result is not None
    assert "disagreements" not in again.result


def test_a_kit_is_used_only_for_those_who_may_write_to_its_adapter(world: World) -> None:
    reg, _ = world
    bob = caller(reg, "bob")
    given = {"adapter": "ann/teacher", "base": "ann/v2", "name": "bob/taken"}
    result = run_transfer(reg, asked(reg, bob, **given))
    report = TransferReport.model_validate(result["report"])
    assert not result["published"]
    assert report.discriminator is None
    assert report.provenance.discriminator_sha256 is None
    assert any("may write to its repository" in line for line in report.summary)


def test_a_kit_of_another_base_shows_the_task_and_filters_nothing(world: World) -> None:
    reg, ann = world
    push_ingested(reg, ann, "ann/twin", base_files("twin"))
    given = {"source_base": "ann/twin", "rungs": ["copy", "trans_lora"], "n": 40}
    _, report = moved(world, "other-base", **given)
    assert "the kit is for ann/v1@" in why_not(report, "trans_lora")
    assert why_not(report, "copy") == "None"
    assert report.sampling is not None
    assert not report.sampling.is_judged


def test_a_discriminator_that_guesses_filters_nothing(world: World) -> None:
    reg, ann = world
    guesses = discriminator_report().model_copy(update={"auc": 0.55, "auc_error": 0.1})
    put_teacher_kit(reg, ann, discriminator=guesses)
    _, report = moved(world, "guessed", rungs=["copy", "trans_lora"], n=40, max_loss=1)
    assert "the discriminator guesses" in why_not(report, "trans_lora")
    assert report.rungs[0].agreed is not None
    # Nothing says that the inputs are like the private tests of which the accuracy is known.
    assert report.source_accuracy == 0.97
    assert report.decision.promise is None
    assert not any("its accuracy is at least" in line for line in report.summary)


def test_without_an_accepted_input_the_others_go_on(world: World) -> None:
    reg, ann = world
    # The discriminator knows another task, so that it refuses what is made up like the seeds.
    put_teacher_kit(reg, ann, of_words=True, n_examples=20)
    given = {"rungs": ["copy", "trans_lora"], "budget": 3, "max_loss": 1}
    result, report = moved(world, "refused", **given)
    assert report.sampling is not None
    assert report.sampling.judged > report.sampling.accepted == 0
    assert "accepted no input" in why_not(report, "trans_lora")
    assert any("the budget of 60 draws is spent" in line for line in report.summary)
    # What was measured on inputs that the discriminator refuses says nothing of the task.
    assert report.rungs[0].agreed is not None
    assert not result["published"]
    assert report.decision.promise is None
    assert "on inputs that the discriminator refused" in report.decision.reasons[0]


def test_prompts_beside_a_kit_are_refused(world: World) -> None:
    reg, ann = world
    with pytest.raises(StepFailed, match="leave prompts out"):
        run_transfer(reg, asked_with_prompts(reg, ann, name="ann/both"))


def test_a_kit_that_goes_while_the_job_runs_ends_it(world: World) -> None:
    reg, ann = world
    job, steps = asked(reg, ann, name="ann/gone", rungs=["trans_lora"], n=20), Recorded()
    steps.dies_in = 4
    with pytest.raises(Killed):
        run_transfer(reg, job, steps)
    steps.dies_in = None
    delete_kit(reg, ann, "ann/teacher")
    with pytest.raises(StepFailed, match="was replaced or deleted while the job ran"):
        run_transfer(reg, job, steps)


def test_a_kit_is_not_used_on_by_the_process_that_has_read_it(world: World) -> None:
    reg, ann = world
    put_teacher_kit(reg, ann)
    job = asked(reg, ann, name="ann/unused", rungs=["trans_lora"], n=20)

    def delete_then_run(name: str, function: Callable[[], Any]) -> Any:
        if name.startswith("answer"):
            delete_kit(reg, ann, "ann/teacher")
        return function()

    with pytest.raises(StepFailed, match="was replaced or deleted while the job ran"):
        run_transfer(reg, job, delete_then_run)


def test_given_inputs_are_shown_to_none_but_who_gave_them(world: World) -> None:
    reg, ann = world
    eve = caller(reg, "eve")
    create_organization(reg, "team")
    for name in ("ann", "eve"):
        add_member(reg, "team", name, "write")
    delete_kit(reg, ann, "ann/teacher")
    given = {"name": "team/given", "rungs": ["copy"], "max_loss": 1}
    job = asked_with_prompts(reg, ann, **given)
    run_transfer(reg, job)
    own, shown = (requests.get_job(reg, each, job).payload["arguments"] for each in (ann, eve))
    assert own["prompts"]
    assert shown == own | {"prompts": None}


def test_a_kit_of_very_many_examples_gets_as_many_draws_as_a_move_may_make(world: World) -> None:
    reg, ann = world
    put_teacher_kit(reg, ann, n_examples=1_000_000)
    found = run_transfer(reg, asked(reg, ann, name="ann/many", dry_run=True))["estimate"]
    assert (found["n_inputs"], found["n_draws"]) == (100_000, 2_000_000)


def test_the_files_of_an_adapter_that_cannot_be_loaded_are_deleted(world: World) -> None:
    reg, _ = world
    context = ComputeContext(reg, FileReader(reg), "odd", 1, lambda *_: None, lambda _: None)
    base = Resident("source", old_base(), tokenizer())
    with pytest.raises(CannotTransfer):
        base.add(context, "odd", {CONFIG_FILE: b"{}"})
    assert list(context.folder().iterdir()) == []

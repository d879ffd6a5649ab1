"""Models that cannot be merged are refused in a sentence, and nothing is published."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Repository
from deltahub.registry.errors import InvalidRequest, RegistryError
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.workers.failures import StepFailed
from support.jobs.here import run_job
from support.merging.running import CONFIG, PATH, asked, push_family
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry
from support.stores.small_disk import SmallDisk

Tensors = dict[str, torch.Tensor]


def changed(**tensors: torch.Tensor) -> Tensors:
    return tiny.task(1) | {name.replace("_", "."): each for name, each in tensors.items()}


def with_nan() -> Tensors:
    weight = tiny.task(1)["up.weight"].clone()
    weight[3, 5] = torch.nan
    return changed(up_weight=weight)


def other_shapes() -> Tensors:
    return {name: each[..., :-1].contiguous() for name, each in tiny.task(1).items()}


# What the second of two fine-tunes is, and what the refusal says.
STRANGERS = {
    "a model of another base": (lambda: tiny.base(7), "is no fine-tune of ann/base"),
    "a model of other shapes": (other_shapes, r"task1 has shape \[\d+, \d+\], the base"),
    "a model without the tensors": (lambda: {"x": torch.zeros(4)}, "task1 has no such tensor"),
    "infinite weights": (with_nan, r"up\.weight of ann/task1@\w+ has infinite or NaN"),
    "quantized weights": (
        lambda: {name: each.to(torch.int8) for name, each in tiny.task(1).items()},
        r"weight of ann/task1@\w+ has dtype I8, and is not the base's: weights that were quantized",
    ),
    "the base itself": (tiny.base, "is the base itself"),
    "the first fine-tune again": (lambda: tiny.task(0), "have the same bytes"),
}


@pytest.mark.parametrize("stranger", list(STRANGERS))
def test_what_cannot_be_merged_is_named(reg: Registry, ann: Caller, stranger: str) -> None:
    make, message = STRANGERS[stranger]
    names = push_family(reg, ann, [tiny.task(0), make()])
    job = asked(reg, ann, names)
    with pytest.raises(StepFailed, match=message) as failure:
        run_job(reg, job)
    assert failure.value.code == "cannot_merge"
    with reg.db.read() as session:
        assert session.query(Repository).filter_by(name="merged").count() == 0


def packed(number: int | None) -> Tensors:
    """The base (None) or a task whose largest matrix is quantized, as GPTQ stores it."""
    tensors = dict(tiny.base() if number is None else tiny.task(number))
    weight = tensors.pop("up.weight")
    scales = weight.abs().amax(1) / 7
    eighths = (weight / scales[:, None]).round().to(torch.int32).bitwise_and_(15)
    shifts = torch.arange(8, dtype=torch.int32) * 4
    words = (eighths.view(len(weight), -1, 8) << shifts).sum(2, dtype=torch.int32)
    return tensors | {"up.qweight": words, "up.scales": scales}


def test_integers_are_not_left_alone_with_merged_scales(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: tiny.to_file(packed(None)), **CONFIG})
    for number in range(2):
        files = {PATH: tiny.to_file(packed(number)), **CONFIG}
        push_ingested(reg, ann, f"ann/task{number}", files, base="ann/base")
    names = ["ann/task0", "ann/task1"]
    with pytest.raises(StepFailed, match=r"up\.qweight of ann/task0@\w+ has dtype I32"):
        run_job(reg, asked(reg, ann, names))
    # Who knows better says so, and then each task keeps its own.
    exact = asked(reg, ann, names, exclude=[r"^up\."])
    kept = run_job(reg, exact)["report"]["tasks"][1]["kept_tensors"]
    assert kept == 3  # integers, scales and bias


def test_scaled_elements_that_the_dtype_cannot_hold_are_named(reg: Registry, ann: Caller) -> None:
    base = tiny.cast(tiny.base(), torch.float16)
    tasks = [{name: each.clone() for name, each in base.items()} for _ in range(2)]
    # One element moves far and alone; moves against the elected sign make the scale large.
    tasks[0]["up.weight"][0, 0] = 60000
    tasks[0]["up.weight"][1:40] -= 3
    tasks[1]["up.weight"][1:40] += 4
    push_ingested(reg, ann, "ann/half", {PATH: tiny.to_file(base), **CONFIG})
    for number, tensors in enumerate(tasks):
        push_ingested(reg, ann, f"ann/h{number}", {PATH: tiny.to_file(tensors)}, base="ann/half")
    job = asked(reg, ann, ["ann/h0", "ann/h1"], base="ann/half")
    with pytest.raises(StepFailed, match=r"up\.weight of ann/h0.*F16 cannot hold"):
        run_job(reg, job)


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "too few task names": ({"tasks": ["one"]}, "1 tasks for 2 models"),
    "a task that is main": ({"tasks": ["main", "other"]}, "no task is named main"),
    "two tasks of one name": ({"tasks": ["same", "same"]}, "two tasks have the name same"),
    "a task that is no branch": ({"tasks": ["a..b", "c"]}, "cannot name a branch"),
    "a broken expression": ({"exclude": ["("]}, "no regular expression"),
    "all tensors excluded": ({"exclude": [".*"]}, "Exclude less"),
    "the density of emr": (
        {"density": 0.3},
        "density says nothing to the method emr, only to ties",
    ),
    "a budget without a comparison": ({"budget": 5}, "only to compare"),
    "rank of ties": ({"method": "ties", "rank": 3}, "only to low-rank, compare"),
    "a GPU": ({"device": "cuda:0"}, "merging runs on the CPU"),
}


@pytest.mark.parametrize("fault", list(BAD_ARGUMENTS))
def test_wrong_arguments_are_named(reg: Registry, ann: Caller, fault: str) -> None:
    options, message = BAD_ARGUMENTS[fault]
    names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
    with pytest.raises((StepFailed, InvalidRequest, ValidationError), match=message):
        run_job(reg, asked(reg, ann, names, **options))


def test_a_full_disk_is_said_and_the_merge_goes_on_when_there_is_room(tmp_path: Path) -> None:
    disk = SmallDisk()
    with opened_registry(tmp_path, disk) as reg:
        ann = caller(reg, "ann")
        names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
        job = asked(reg, ann, names)
        disk.free = 1000
        with pytest.raises(StepFailed, match=r"room for 1\.0 kB, and the merge needs") as failure:
            run_job(reg, job)
        assert failure.value.is_transient  # the job is repeated when there is room
        # It gets full later, while packs are written.
        disk.free, disk.room = 1 << 40, 100_000
        with pytest.raises(StepFailed) as failure:
            run_job(reg, job)
        assert failure.value.is_transient
        assert list(fsck(reg, read_data=True)) == []
        with reg.db.read() as session:
            assert session.query(Repository).filter_by(name="merged").count() == 0
        disk.room = 1 << 40
        run_job(reg, job)
        assert list(fsck(reg, read_data=True)) == []


def test_rights_that_end_while_the_job_waits_end_the_job(reg: Registry, ann: Caller) -> None:
    names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
    bob = caller(reg, "bob")
    job = asked(reg, bob, names, base="ann/base")
    with reg.db.write() as session:
        session.query(Repository).filter_by(name="task1").one().is_private = True
    with pytest.raises(StepFailed, match="may not read it") as failure:
        run_job(reg, job)
    assert failure.value.code == "repository_not_found"


@pytest.mark.parametrize("change", ["base", "task0"])
def test_rights_that_end_while_the_job_runs_publish_nothing(
    reg: Registry, ann: Caller, change: str
) -> None:
    names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
    bob = caller(reg, "bob")

    def run_step(name: str, function: Any) -> Any:
        if name == "publish":
            with reg.db.write() as session:
                session.query(Repository).filter_by(name=change).one().is_private = True
        return function()

    with pytest.raises(StepFailed, match="may not read it"):
        run_job(reg, asked(reg, bob, names, base="ann/base"), run_step)
    with reg.db.read() as session:
        assert session.query(Repository).filter_by(name="merged").count() == 0


def test_expressions_that_never_end_are_refused(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
    monkeypatch.setattr("deltahub.workers.jobs.merge.models.MATCHING_S", 0.2)
    with pytest.raises(StepFailed, match="matching the expressions of exclude takes too long"):
        run_job(reg, asked(reg, ann, names, exclude=["^(.|.|.|.)*!$"]))


def test_a_tensor_too_large_for_the_memory_is_named_before_anything_is_made(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
    monkeypatch.setattr("resource.getrlimit", lambda _: (100_000, 100_000))
    with pytest.raises(StepFailed, match=r"up\.weight would need .* choose emr"):
        run_job(reg, asked(reg, ann, names, method="iso-c", dry_run=True))
    assert run_job(reg, asked(reg, ann, names, name="ann/emr"))["report"]


def test_a_name_that_is_taken_while_the_job_runs_is_named(reg: Registry, ann: Caller) -> None:
    names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
    job = asked(reg, ann, names)
    push_ingested(reg, ann, "ann/merged", {"x.txt": b"x"})
    with pytest.raises(StepFailed, match="exists already"):
        run_job(reg, job)


def test_weights_that_cannot_be_read_safely_are_no_model(reg: Registry, ann: Caller) -> None:
    names = push_family(reg, ann, [tiny.task(0)])
    push_ingested(reg, ann, "ann/pickled", {"pytorch_model.bin": b"\x80\x04", **CONFIG})
    job = asked(reg, ann, [*names, "ann/pickled"])
    with pytest.raises(StepFailed, match="push its weights as safetensors"):
        run_job(reg, job)


def test_too_many_unfinished_jobs_of_one_user_are_refused(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
    monkeypatch.setattr("deltahub.registry.results.asked.MAX_UNFINISHED", 2)
    for number in range(2):
        asked(reg, ann, names, name=f"ann/m{number}")
    with pytest.raises(RegistryError, match="2 unfinished jobs") as refusal:
        asked(reg, ann, names, name="ann/m2")
    assert refusal.value.code == "limit_exceeded"

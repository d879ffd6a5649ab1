"""The job `merge`: the branches of its result are what a plain EMR of the same models gives."""

import numpy as np
import pytest
from safetensors.torch import load
from sqlalchemy import func, select

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import Tensor
from deltahub.registry.maintenance.fsck.run import fsck
from support.jobs.here import run_job
from support.merging.plain_emr import plain_emr
from support.merging.running import CONFIG, PATH, asked, branches, push_family
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested, read_file


def arrays(tensors: tiny.Tensors) -> dict[str, np.ndarray]:
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}


def read(reg: Registry, revision: int) -> tiny.Tensors:
    return load(read_file(reg, revision, PATH))


def test_branches_are_what_a_plain_emr_gives(reg: Registry, ann: Caller) -> None:
    tasks = [tiny.task(number) for number in range(4)]
    names = push_family(reg, ann, tasks)
    result = run_job(reg, asked(reg, ann, names))
    found = branches(reg, "merged")
    assert found.keys() == {"main", "task0", "task1", "task2", "task3"}
    expected = plain_emr(arrays(tiny.base()), [arrays(task) for task in tasks])
    unified = read(reg, found["main"])
    assert unified.keys() == tiny.base().keys()
    for name, values in expected.unified.items():
        assert np.array_equal(unified[name].double().numpy(), values.astype(np.float32))
    for number, task in enumerate(expected.tasks):
        made = read(reg, found[f"task{number}"])
        assert result["report"]["tasks"][number]["scale"] == pytest.approx(expected.scales[number])
        for name, values in task.items():
            near = made[name].double().numpy()
            assert np.allclose(near, values, rtol=2**-23, atol=0), (name, number)
    assert read_file(reg, found["task1"], "config.json").startswith(b"{")
    assert b"ann/task2" in read_file(reg, found["main"], "README.md")
    assert list(fsck(reg, read_data=True)) == []


def test_the_merge_outlives_its_fine_tunes(reg: Registry, ann: Caller) -> None:
    names = push_family(reg, ann, [tiny.task(number) for number in range(3)])
    run_job(reg, asked(reg, ann, names))
    found = branches(reg, "merged")
    before = {ref: read_file(reg, revision, PATH) for ref, revision in found.items()}
    for name in names:
        delete_repository(reg, ann, name)
    assert {ref: read_file(reg, revision, PATH) for ref, revision in found.items()} == before
    assert list(fsck(reg, read_data=True)) == []


def test_a_base_that_is_itself_a_difference_gives_chains_that_fsck_allows(
    reg: Registry, ann: Caller
) -> None:
    names = push_family(reg, ann, [tiny.task(0), tiny.task(1), tiny.task(2)])
    job = asked(reg, ann, names[1:], base=names[0])
    run_job(reg, job)
    assert list(fsck(reg, read_data=True)) == []


def test_a_unified_model_that_a_checkpoint_already_stores_as_a_longer_chain_has_branches(
    reg: Registry, ann: Caller
) -> None:
    base, late = tiny.base(), tiny.task(0)
    early = {name: base[name] + 0.5 * (late[name] - base[name]) for name in base}
    (name,) = push_family(reg, ann, [early])
    # The later checkpoint is the unified model, and a difference from the earlier one.
    push_ingested(reg, ann, "ann/late", {PATH: tiny.to_file(late), **CONFIG}, base=name)
    run_job(reg, asked(reg, ann, [name, "ann/late"]))
    found = branches(reg, "merged")
    assert read_file(reg, found["main"], PATH) == tiny.to_file(late)
    with reg.db.read() as session:
        assert session.scalar(select(func.max(Tensor.depth))) == 3
    assert list(fsck(reg, read_data=True)) == []


def test_the_report_tells_of_missing_tensors_and_of_what_was_asked_for(
    reg: Registry, ann: Caller
) -> None:
    lacking = {name: each for name, each in tiny.task(0).items() if name != "up.bias"}
    names = push_family(reg, ann, [lacking, tiny.task(1)])
    result = run_job(reg, asked(reg, ann, names, method="low-rank", rank=3, exclude=["nothing"]))
    report = result["report"]
    (warning,) = report["warnings"]
    assert "ann/task0 lacks 1 tensors of the base, such as up.bias" in warning
    assert report["options"] == {"rank": 3, "exclude": ["nothing"]}

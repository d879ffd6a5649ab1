"""Every method of `merge` keeps what it promises; the comparison agrees with what is then made."""

from typing import get_args

import numpy as np
import pytest
from safetensors.torch import load

from deltahub.methods.kinds.merge import COMPARE, Method
from deltahub.methods.merging.frontier import Comparison
from deltahub.methods.merging.report import MergeReport, TensorErrors
from deltahub.methods.merging.static import STATIC
from deltahub.registry import Caller, Registry
from deltahub.registry.maintenance.fsck.run import fsck
from support.jobs.here import run_job
from support.merging.running import PATH, asked, branches, push_family
from support.models import tiny_models as tiny
from support.registry.ingested import read_file, stored_tensors

N_TASKS = 3
TASKS = [tiny.task(number) for number in range(N_TASKS)]
METHODS = [method for method in get_args(Method) if method != COMPARE]


def merged(reg: Registry, ann: Caller, method: str, **options: object) -> MergeReport:
    names = push_family(reg, ann, TASKS)
    result = run_job(reg, asked(reg, ann, names, method=method, **options))
    assert list(fsck(reg, read_data=True)) == []
    return MergeReport.model_validate(result["report"])


def relative_error(made: tiny.Tensors, task: tiny.Tensors, *names: str) -> float:
    """names: only of these tensors."""
    base = tiny.base()
    over = names or base.keys()
    error = sum(float(((made[name] - task[name]).double() ** 2).sum()) for name in over)
    moved = sum(float(((base[name] - task[name]).double() ** 2).sum()) for name in over)
    return float((error / moved) ** 0.5)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_makes_its_branches_and_reports_their_errors(
    reg: Registry, ann: Caller, method: str
) -> None:
    report = merged(reg, ann, method)
    found = branches(reg, "merged")
    is_static = method in STATIC
    names = {f"task{number}" for number in range(N_TASKS)}
    assert found.keys() == ({"main"} if is_static else {"main"} | names)
    for number, task in enumerate(report.tasks):
        assert task.branch == ("main" if is_static else f"task{number}")
        made = load(read_file(reg, found[task.branch], PATH))
        error = relative_error(made, TASKS[number])
        assert error == pytest.approx(task.relative_error, rel=1e-3, abs=1e-9)
        assert task.is_exact == (method == "lossless")
    assert b"merged by" in read_file(reg, found["main"], "README.md")


@pytest.mark.parametrize("method", ["emr", "ties", "low-rank"])
def test_the_error_of_each_tensor_is_told(reg: Registry, ann: Caller, method: str) -> None:
    report = merged(reg, ann, method)
    found = branches(reg, "merged")
    text = read_file(reg, found["main"], "merge_errors.json")
    told = TensorErrors.model_validate_json(text)
    assert told.tasks == [task.branch for task in report.tasks]
    assert told.models == [task.model for task in report.tasks]
    assert told.relative_errors.keys() == tiny.base().keys() - {"head.weight"}
    for number, task in enumerate(report.tasks):
        made = load(read_file(reg, found[task.branch], PATH))
        for name, errors in told.relative_errors.items():
            error = relative_error(made, TASKS[number], name)
            # Of emr they are told before the last rounding.
            assert errors[number] == pytest.approx(error, rel=2e-3, abs=1e-6)


@pytest.mark.parametrize("method", ["emr", "bitdelta", "low-rank", "lossless"])
def test_the_bytes_of_a_branch_are_all_that_the_base_and_main_have_not(
    reg: Registry, ann: Caller, method: str
) -> None:
    report = merged(reg, ann, method, exclude=[r"^down\.weight"])
    found = branches(reg, "merged")
    stored = {ref: stored_tensors(reg, row) for ref, row in found.items()}
    # Where main is the base, it has nothing of its own.
    shared = {each.id for each in stored["main"].values()}
    for task in report.tasks:
        own = {each.id: each.stored_bytes for each in stored[task.branch].values()
               if each.id not in shared}  # fmt: skip
        assert task.kept_tensors == 1
        assert stored[task.branch]["down.weight"].id in own
        assert task.branch_bytes == sum(own.values())
    assert report.branches_bytes == sum(task.branch_bytes for task in report.tasks)


def test_branches_of_a_lossless_emr_are_the_fine_tunes(reg: Registry, ann: Caller) -> None:
    report = merged(reg, ann, "emr", lossless=True)
    found = branches(reg, "merged")
    for number in range(N_TASKS):
        assert read_file(reg, found[f"task{number}"], PATH) == tiny.to_file(TASKS[number])
    assert all(task.is_exact for task in report.tasks)
    assert report.main_bytes > 0


def test_the_average_is_the_mean_of_the_models(reg: Registry, ann: Caller) -> None:
    merged(reg, ann, "average")
    made = load(read_file(reg, branches(reg, "merged")["main"], PATH))
    for name, tensor in made.items():
        base = tiny.base()[name].double()
        mean = base + sum(task[name].double() - base for task in TASKS) / N_TASKS
        assert np.array_equal(tensor.numpy(), mean.float().numpy()), name


def test_a_smaller_rank_takes_fewer_bytes_and_keeps_less(reg: Registry, ann: Caller) -> None:
    names = push_family(reg, ann, TASKS)
    reports = []
    for rank in (2, 16):
        options = {"method": "low-rank", "rank": rank, "name": f"ann/rank{rank}"}
        result = run_job(reg, asked(reg, ann, names, **options))
        reports.append(MergeReport.model_validate(result["report"]))
    small, large = reports
    assert small.branches_bytes < large.branches_bytes
    assert small.tasks[0].relative_error > large.tasks[0].relative_error


def test_the_comparison_says_what_the_methods_then_do(reg: Registry, ann: Caller) -> None:
    names = push_family(reg, ann, TASKS)
    given = {"exclude": [r"^down\.weight"]}  # which each branch keeps, and the bytes of all include
    result = run_job(reg, asked(reg, ann, names, method=COMPARE, name=None, **given))
    found = Comparison.model_validate(result["comparison"])
    assert {each.method for each in found.candidates} == set(METHODS)
    assert found.choice == "lossless"
    assert result["picture"].startswith("<svg")
    by_method = {each.method: each for each in found.candidates}
    for method in ("emr", "bitdelta", "ties", "lossless"):
        options = {"method": method, "name": f"ann/{method}", **given}
        made = run_job(reg, asked(reg, ann, names, **options))["report"]
        report = MergeReport.model_validate(made)
        errors = [task.relative_error for task in report.tasks]
        assert by_method[method].relative_error == pytest.approx(np.mean(errors), rel=1e-6)
        assert by_method[method].n_bytes == pytest.approx(report.merge_bytes, rel=0.1)


@pytest.mark.parametrize(("budget", "is_within"), [(1.0, False), (60.0, True)])
def test_the_choice_is_the_best_within_the_budget(
    reg: Registry, ann: Caller, budget: float, is_within: bool
) -> None:
    names = push_family(reg, ann, TASKS)
    job = asked(reg, ann, names, method=COMPARE, name=None, budget=budget)
    found = Comparison.model_validate(run_job(reg, job)["comparison"])
    assert found.budget_bytes == round(found.files_bytes * budget / 100)
    within = [each for each in found.candidates if each.n_bytes <= found.budget_bytes]
    assert bool(within) == is_within
    if is_within:
        best = min(within, key=lambda each: each.relative_error)
        assert found.choice == best.method
    else:
        assert found.choice is None

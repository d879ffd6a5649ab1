"""The comparison asks real models, and chooses the one that answers best."""

import json
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from deltahub.methods.merging.frontier import Comparison
from deltahub.registry import Caller, Registry
from deltahub.workers.failures import StepFailed
from support.jobs.here import run_job
from support.merging.running import asked
from support.models import tiny_llamas
from support.registry.ingested import push_ingested

EXAMPLES = [
    {"task": rule, "input": question, "expected": answer}
    for rule in ("next", "reverse")
    for question, answer in tiny_llamas.questions(rule)
]


@pytest.fixture
def names(reg: Registry, ann: Caller) -> list[str]:
    push_ingested(reg, ann, "ann/base", tiny_llamas.files("base"))
    for rule in ("next", "reverse"):
        push_ingested(reg, ann, f"ann/{rule}", tiny_llamas.files(rule), base="ann/base")
    return ["ann/next", "ann/reverse"]


def compare(reg: Registry, ann: Caller, names: list[str], **options: Any) -> Comparison:
    given = {"method": "compare", "name": None, "eval": EXAMPLES, "device": "cpu"}
    job = asked(reg, ann, names, **(given | options))
    return Comparison.model_validate(run_job(reg, job)["comparison"])


def test_models_answer_as_well_as_their_method_keeps_them(
    reg: Registry, ann: Caller, names: list[str]
) -> None:
    found = {each.method: each for each in compare(reg, ann, names).candidates}
    assert found["lossless"].accuracy == 1.0
    assert all(each.accuracy is not None for each in found.values())
    # One checkpoint cannot give two answers to the same question.
    for each in found.values():
        assert each.accuracy is not None
        assert not each.is_static or each.accuracy <= 0.55
    emr, average = found["emr"].accuracy, found["average"].accuracy
    assert emr is not None
    assert average is not None
    assert emr > average


def test_the_choice_is_the_most_accurate_within_the_budget(
    reg: Registry, ann: Caller, names: list[str]
) -> None:
    found = compare(reg, ann, names)
    assert found.choice == "lossless"
    largest = max(each.n_bytes for each in found.candidates if each.method != "lossless")
    budget = 100 * largest / found.files_bytes
    again = compare(reg, ann, names, budget=budget)
    within = [each for each in again.candidates if each.n_bytes <= (again.budget_bytes or 0)]
    assert again.choice is not None
    best = max(each.accuracy or 0.0 for each in within)
    assert next(e for e in within if e.method == again.choice).accuracy == best


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another task": ({"eval": [{"input": "a=", "expected": "b", "task": "x"}]}, "the task 'x'"),
    "no such device": ({"device": "cuda:7"}, r"there is no device cuda:7 here: choose cpu"),
}


@pytest.mark.parametrize("fault", list(REFUSED))
def test_what_cannot_be_evaluated_is_named(
    reg: Registry, ann: Caller, names: list[str], fault: str
) -> None:
    options, message = REFUSED[fault]
    with pytest.raises(StepFailed, match=message):
        compare(reg, ann, names, **options)


def test_a_worker_without_the_packages_names_the_extra(
    reg: Registry, ann: Caller, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(StepFailed, match=r"needs transformers: on its machine, .*\[compute\]"):
        compare(reg, ann, names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"auto_map": {"AutoModel": "modeling.Evil"}}, "needs code of its own"),
        ({"architectures": ["LlamaForTokenClassification"]}, "only causal models"),
    ],
)
def test_a_model_that_is_not_run_is_named(
    reg: Registry, ann: Caller, names: list[str], change: dict[str, Any], message: str
) -> None:
    files = dict(tiny_llamas.files("next"))
    files["config.json"] = json.dumps(json.loads(files["config.json"]) | change).encode()
    push_ingested(reg, ann, "ann/odd", files, base="ann/base")
    with pytest.raises(StepFailed, match=message):
        compare(reg, ann, ["ann/reverse", "ann/odd"], eval=EXAMPLES[12:])


@pytest.mark.parametrize(("began_on", "is_repeated"), [("cpu", False), ("cuda", True)])
def test_models_run_where_the_job_began_or_the_job_begins_again(
    reg: Registry,
    ann: Caller,
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
    began_on: str,
    is_repeated: bool,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def run_step(name: str, function: Any) -> Any:
        result = function()
        # The rest runs in another worker, which has no GPU.
        return result | {"device": began_on} if name == "check the models" else result

    given = {"method": "compare", "name": None, "eval": EXAMPLES[:2]}
    job = asked(reg, ann, names, **given)
    if not is_repeated:
        assert run_job(reg, job, run_step)["comparison"]
        return
    with pytest.raises(StepFailed, match="ran on a GPU, and this worker has none") as failure:
        run_job(reg, job, run_step)
    assert failure.value.is_transient


def test_a_gpu_for_a_merge_that_runs_no_model_is_refused(
    reg: Registry, ann: Caller, names: list[str]
) -> None:
    with pytest.raises(ValidationError, match="merging runs on the CPU"):
        asked(reg, ann, names, device="cuda:0")

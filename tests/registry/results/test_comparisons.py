"""Who reads a comparison, and how long there is one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.db.tables.comparisons import Comparison, ComparisonPart
from deltahub.registry.errors import ComparisonNotFound, RepositoryNotFound, TensorNotFound
from deltahub.registry.jobs import requests
from deltahub.registry.results.comparisons import read, write
from deltahub.registry.results.comparisons.read import TensorQuery
from deltahub.workers.failures import StepFailed
from support.comparing.running import asked, compared
from support.jobs.here import run_job
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry
from support.registry.withdrawing import withdraw_now

FILE = "model.safetensors"


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as opened:
        yield opened


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


@pytest.fixture
def bob(reg: Registry) -> Caller:
    return caller(reg, "bob")


@pytest.fixture
def found(reg: Registry, ann: Caller, bob: Caller) -> str:
    """Bob has compared two public models of Ann's."""
    push_ingested(reg, ann, "ann/base", {FILE: tiny.to_file(tiny.base())})
    push_ingested(reg, ann, "ann/tuned", {FILE: tiny.to_file(tiny.task(0))}, base="ann/base")
    return compared(reg, bob, "ann/base", "ann/tuned")


@pytest.mark.parametrize("name", ["ann/base", "ann/tuned"])
def test_a_model_that_becomes_private_takes_the_comparison_with_it(
    reg: Registry, ann: Caller, bob: Caller, found: str, name: str
) -> None:
    assert read.get(reg, None, found).id == found
    withdraw_now(reg, ann, name, "private")
    assert read.get(reg, ann, found).id == found
    for stranger in (bob, None):
        with pytest.raises(ComparisonNotFound):
            read.get(reg, stranger, found)
        with pytest.raises(ComparisonNotFound):
            read.list_tensors(reg, stranger, found, TensorQuery())
        with pytest.raises(ComparisonNotFound):
            read.get_tensor(reg, stranger, found, "up.weight")
        with pytest.raises(RepositoryNotFound):
            read.find(reg, stranger, "ann/base", "ann/tuned")


def test_what_a_job_tells_has_no_numbers_of_the_weights(
    reg: Registry, bob: Caller, found: str
) -> None:
    (job,) = requests.list_jobs(reg, bob, kind="compare")
    assert dict(job.result or {}) == {"comparison_id": found}


@pytest.mark.parametrize("name", ["ann/base", "ann/tuned"])
def test_it_is_deleted_with_either_model(reg: Registry, ann: Caller, found: str, name: str) -> None:
    withdraw_now(reg, ann, name, "delete")
    with pytest.raises(ComparisonNotFound):
        read.get(reg, ann, found)
    with reg.db.read() as session:
        assert session.query(Comparison).count() == 0
        assert session.query(ComparisonPart).count() == 0


def test_equal_weights_in_a_private_model_find_no_public_comparison(
    reg: Registry, ann: Caller, bob: Caller, found: str
) -> None:
    push_ingested(reg, bob, "bob/own", {FILE: tiny.to_file(tiny.task(0))}, private=True)
    assert read.find(reg, bob, "ann/base", "bob/own") is None
    own = compared(reg, bob, "ann/base", "bob/own")
    assert own != found
    with pytest.raises(ComparisonNotFound):
        read.get(reg, ann, own)


def test_private_models_of_two_namespaces_are_compared_for_who_may_read_both(
    reg: Registry, ann: Caller, bob: Caller
) -> None:
    push_ingested(reg, ann, "ann/a", {FILE: tiny.to_file(tiny.base())}, private=True)
    push_ingested(reg, bob, "bob/b", {FILE: tiny.to_file(tiny.task(0))}, private=True)
    root = caller(reg, "root", is_admin=True)
    found = compared(reg, root, "ann/a", "bob/b")
    assert read.get(reg, root, found).id == found
    for one in (ann, bob):
        with pytest.raises(ComparisonNotFound):
            read.get(reg, one, found)
        with pytest.raises(RepositoryNotFound):
            asked(reg, one, "ann/a", "bob/b")


def test_a_right_that_is_lost_while_the_job_runs_ends_it(
    reg: Registry, ann: Caller, bob: Caller, found: str
) -> None:
    with reg.db.write() as session:
        session.query(Comparison).delete()
    job = asked(reg, bob, "ann/base", "ann/tuned")
    withdraw_now(reg, ann, "ann/base", "private")
    with pytest.raises((RepositoryNotFound, StepFailed), match="ann/base"):
        run_job(reg, job)


def test_the_comparisons_that_were_not_used_for_longest_go(
    reg: Registry, ann: Caller, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "MAX_COMPARISONS", 2)
    push_ingested(reg, ann, "ann/third", {FILE: tiny.to_file(tiny.task(1))}, base="ann/base")
    others = [compared(reg, ann, f"ann/{name}", "ann/third") for name in ("base", "tuned")]
    with pytest.raises(ComparisonNotFound):
        read.get(reg, ann, found)
    assert [read.get(reg, ann, each).id for each in others] == others
    monkeypatch.setattr(write, "MAX_BYTES", 1)
    last = compared(reg, ann, "ann/third", "ann/base")
    with reg.db.read() as session:
        assert [row.id for row in session.query(Comparison)] == [last]


def test_tensors_are_found_and_sorted(reg: Registry, ann: Caller, found: str) -> None:
    def names(**query: object) -> list[str]:
        items, total = read.list_tensors(reg, ann, found, TensorQuery(**query))  # type: ignore[arg-type]  # mypy: a dict
        assert total >= len(items)
        return [each["name"] for each in items]

    everything = names(order="name")
    assert everything == sorted(tiny.base())
    assert set(names(words=["UP"])) == {"up.weight", "up.bias"}
    assert names(status="same") == ["head.weight"]
    assert names(module="down", order="name") == ["down.bias", "down.weight"]
    assert names(order="name", offset=2, limit=2) == everything[2:4]
    assert names(order="relative")[-1] == "head.weight"
    assert names(order="relative", is_reversed=True)[0] == "head.weight"
    for order in read.ORDERS:
        assert sorted(names(order=order)) == everything
    with pytest.raises(TensorNotFound):
        read.get_tensor(reg, ann, found, "absent")

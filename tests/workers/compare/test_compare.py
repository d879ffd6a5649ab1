"""The job compares what two models store, whatever their shapes and types."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Hold
from deltahub.registry.db.tables.comparisons import Comparison, ComparisonPart
from deltahub.registry.results.comparisons import read
from deltahub.workers.failures import StepFailed
from deltahub.workers.jobs.compare import reading, steps
from support.comparing.running import asked, compared, tensors_of
from support.jobs.here import run_job
from support.models import model_folders as folders
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested

FILE = "model.safetensors"


class Killed(Exception):
    """The worker died here."""


@pytest.mark.usefixtures("models")
def test_a_fine_tune_is_compared_tensor_by_tensor(reg: Registry, ann: Caller) -> None:
    found = compared(reg, ann, "ann/base", "ann/tuned")
    tensors = tensors_of(reg, ann, found)
    base, tuned = folders.base_tensors(), folders.tuned_tensors()
    assert tensors["model.0.head.weight"]["status"] == "same"
    assert tensors["model.0.head.weight"]["n_same"] == base["model.0.head.weight"].numel()
    assert tensors["extra.weight"]["status"] == "only_second"
    assert tensors["model.1.down.bias"]["status"] == "only_first"
    reshaped = tensors["model.1.up.bias"]
    assert (reshaped["status"], reshaped["shape"], reshaped["second_shape"]) == (
        "reshaped", [192], [191],
    )  # fmt: skip
    name = "model.1.up.weight"
    first, second = (each[name].double().numpy() for each in (base, tuned))
    change = np.linalg.norm(second - first)
    assert tensors[name]["relative"] == pytest.approx(change / np.linalg.norm(first))
    assert tensors[name]["n_same"] == int((first == second).sum())
    numbers, detail = read.get_tensor(reg, ann, found, name)
    assert numbers["change"] == pytest.approx(change)
    assert detail is not None
    assert sum(detail["histogram"]["counts"]) + detail["histogram"]["zero"] == first.size
    assert (detail["heat"]["rows"], detail["heat"]["columns"]) == (64, 64)
    info = read.get(reg, ann, found)
    assert info.totals["n_tensors"] == 13
    assert (info.totals["n_same"], info.totals["n_changed"]) == (1, 9)
    assert sum(cell["n_tensors"] for cell in info.cells) == 13
    with reg.db.read() as session:
        assert session.query(Hold).count() == 0


@pytest.mark.usefixtures("models")
def test_the_same_weights_are_compared_once_by_whichever_revisions(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = compared(reg, ann, "ann/base", "ann/tuned")
    files = {FILE: tiny.to_file(folders.base_tensors()), "README.md": b"more"}
    push_ingested(reg, ann, "ann/copy", files)
    monkeypatch.setattr(steps, "compare_some", None)
    assert compared(reg, ann, "ann/copy", "ann/tuned") == before
    found = read.find(reg, ann, "ann/copy", "ann/tuned")
    assert found is not None
    assert (found.id, found.first.name) == (before, "ann/copy")
    assert read.find(reg, ann, "ann/tuned", "ann/base") is None


def test_equal_models_are_known_without_reading(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_ingested(reg, ann, "ann/one", {FILE: tiny.to_file(tiny.base())})
    monkeypatch.setattr(reading.PairReader, "read", None)
    info = read.get(reg, ann, compared(reg, ann, "ann/one", "ann/one"))
    assert info.totals["same_elements"] == info.totals["elements"] > 0
    assert info.totals["n_changed"] == 0
    assert {cell["relative"] for cell in info.cells} == {0.0}


def test_other_dtypes_and_integers_are_compared(reg: Registry, ann: Caller) -> None:
    first = {
        **tiny.base(),
        "ids": torch.arange(10),
        "small": torch.arange(8, dtype=torch.float32).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(2.0),
    }
    second = {**tiny.cast(tiny.base(), torch.bfloat16), **{k: first[k] for k in ("scalar",)}}
    second["ids"] = first["ids"].clone()
    second["ids"][3] = 77
    second["small"] = torch.zeros(8).to(torch.float8_e4m3fn)
    second["scalar"] = torch.tensor(3.0)
    push_ingested(reg, ann, "ann/a", {FILE: tiny.to_file(first)})
    push_ingested(reg, ann, "ann/b", {FILE: tiny.to_file(second)})
    tensors = tensors_of(reg, ann, compared(reg, ann, "ann/a", "ann/b"))
    assert (tensors["ids"]["n_same"], tensors["ids"]["relative"]) == (9, None)
    assert tensors["small"]["largest"] == 7.0
    assert tensors["scalar"]["relative"] == pytest.approx(0.5)
    up = tensors["up.weight"]
    assert (up["dtype"], up["second_dtype"]) == ("F32", "BF16")
    assert 0 < up["relative"] < 0.01
    rounded = tiny.base()["up.weight"].to(torch.bfloat16).float() == tiny.base()["up.weight"]
    assert up["n_same"] == int(rounded.sum())


@pytest.mark.usefixtures("models")
def test_large_tensors_are_read_in_parts_with_the_same_result(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tensors_of(reg, ann, compared(reg, ann, "ann/base", "ann/tuned"))
    with reg.db.write() as session:
        session.query(Comparison).delete()
    monkeypatch.setattr(reading, "_PART_BYTES", 10_000)
    monkeypatch.setattr(reading, "_BLOCK", 500)
    monkeypatch.setattr("deltahub.methods.comparing.tensor.KEPT_ELEMENTS", 0)
    parts = tensors_of(reg, ann, compared(reg, ann, "ann/base", "ann/tuned"))
    assert whole.keys() == parts.keys()
    for name, each in whole.items():
        for key, value in each.items():
            if key.startswith("rank_9") and value is not None:
                assert parts[name][key] == pytest.approx(value, abs=1)
            else:
                assert parts[name][key] == (
                    pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
                ), (name, key)


class Recorded:
    """Records results of steps as the engine does, and dies in one of them."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        self.dies_in: int | None = None
        self.is_late = False

    def __call__(self, name: str, function: Callable[[], Any]) -> Any:
        if name not in self.results:
            is_last = len(self.results) == self.dies_in
            if is_last and not self.is_late:
                raise Killed
            result = json.dumps(function())
            if is_last:
                raise Killed
            self.results[name] = result
        return json.loads(self.results[name])


def _stored(reg: Registry) -> list[tuple[bytes, bytes, list[bytes]]]:
    with reg.db.read() as session:
        return [
            (
                row.totals,
                row.tensors,
                [
                    part.data
                    for part in session.query(ComparisonPart)
                    .filter_by(comparison_id=row.id)
                    .order_by(ComparisonPart.number)
                ],
            )
            for row in session.query(Comparison)
        ]


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("is_late", [False, True])
def test_a_job_that_is_killed_in_any_step_goes_on_with_the_same_bytes(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    monkeypatch.setattr(steps, "STEP_TENSORS", 4)
    expected = Recorded()
    run_job(reg, asked(reg, ann, "ann/base", "ann/tuned"), expected)
    (whole,) = _stored(reg)
    assert len(whole[2]) == 3
    for number in range(len(expected.results)):
        with reg.db.write() as session:
            session.query(Comparison).delete()
        job, records = asked(reg, ann, "ann/base", "ann/tuned"), Recorded()
        records.dies_in, records.is_late = number, is_late
        with pytest.raises(Killed):
            run_job(reg, job, records)
        records.dies_in = None
        run_job(reg, job, records)
        assert _stored(reg) == [whole], f"killed in step {number}"


def test_a_dry_run_estimates_and_stores_nothing(reg: Registry, ann: Caller, models: None) -> None:
    result = run_job(reg, asked(reg, ann, "ann/base", "ann/tuned", dry_run=True))
    assert result["estimate"]["n_read"] == 9
    assert _stored(reg) == []


def test_a_model_without_weights_is_refused(reg: Registry, ann: Caller, models: None) -> None:
    push_ingested(reg, ann, "ann/text", {"README.md": b"text"})
    with pytest.raises(StepFailed, match="no safetensors file"):
        run_job(reg, asked(reg, ann, "ann/base", "ann/text"))

"""`make bench-pissa` in small: what has to hold for its starts, its rivals and its figures."""

import importlib.util
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch

from benchmarks.pissa import bf16, quantization, report, tasks_bytes, tasks_digits
from benchmarks.pissa.picture import draw
from benchmarks.pissa.starts import adapted
from benchmarks.pissa.task import Task
from benchmarks.pissa.training import Row, Trained, train_adapter
from deltahub.methods.quantization.nf4 import round_trip

SEED = 0
RANK = 2
RATES = (1e-3, 1e-2)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def task(models: Path) -> Task:
    recipe = tasks_bytes.Recipe(
        hidden=32,
        layers=1,
        heads=2,
        intermediate=64,
        batch=4,
        base_steps=60,
        base_bytes=300_000,
        rank=RANK,
        steps=20,
        n_test=8,
    )
    return tasks_bytes.make_task(models, SEED, recipe)


@pytest.fixture(scope="module")
def trained(task: Task) -> Trained:
    return train_adapter(task, "PiSSA", RATES[0])


@pytest.fixture(scope="module")
def rows(task: Task) -> list[Row]:
    return [
        row for rate in RATES for start in report.STARTS
        for row in train_adapter(task, start, rate).rows
    ]  # fmt: skip


@pytest.mark.parametrize("start", ["LoRA", "PiSSA", "PiSSA by PEFT"])
def test_every_start_computes_what_the_base_computes(task: Task, start: str) -> None:
    tokens = torch.arange(24)[None]
    with torch.inference_mode():
        wanted = task.make_base()(input_ids=tokens).logits
        found = adapted(task.make_base(), task, start)(input_ids=tokens).logits
    assert torch.allclose(found, wanted, atol=1e-5)


def test_a_training_gives_the_same_figures_again(task: Task, trained: Trained) -> None:
    assert train_adapter(task, "PiSSA", RATES[0]).rows == trained.rows
    assert [row.step for row in trained.rows] == [10, 20, 20]


def test_at_equal_moderate_rates_pissa_learns_digits_faster(models: Path) -> None:
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("scikit-learn, which `make bench-pissa` installs, has the digits")
    recipe = tasks_digits.Recipe(hidden=64, base_steps=200, steps=150)
    task = tasks_digits.make_task(models, SEED, recipe)
    last = {start: train_adapter(task, start, 3e-3).rows[-3] for start in report.STARTS}
    assert last["PiSSA"].value < 0.8 * last["LoRA"].value


def test_quantization_errors_have_the_order_of_the_paper(task: Task) -> None:
    found = quantization.measure(SEED, task.target_weights(), 4)
    reductions = {
        method: mean(row.reduction for row in found if row.method == method)
        for method in quantization.METHODS
    }
    assert reductions["QLoRA"] == 0 < reductions["LoftQ-1"] < reductions["PiSSA-1"]
    assert reductions["LoftQ-1"] < reductions["LoftQ-5"] < reductions["PiSSA-5"]
    assert reductions["PiSSA-1"] < reductions["PiSSA-5"]


def test_loftq_of_one_iteration_adds_what_nf4_lost_to_the_quantized_weight(task: Task) -> None:
    weight = next(iter(task.target_weights().values()))
    loaded, factors = quantization.loftq(weight, 3, 1)
    assert np.array_equal(loaded, round_trip(weight))
    lost = np.linalg.svd(weight - loaded, compute_uv=False)
    left = np.linalg.norm(weight - loaded - factors.up @ factors.down)
    assert left == pytest.approx(np.linalg.norm(lost[3:]), rel=1e-4)


def test_a_start_in_bf16_is_nearer_to_the_base_than_by_peft(task: Task) -> None:
    ours, theirs = bf16.start_errors(task, "PiSSA"), bf16.start_errors(task, "PiSSA by PEFT")
    assert ours.keys() == theirs.keys() == task.target_weights().keys()
    assert all(ours[name] < theirs[name] for name in ours)


def test_an_update_that_is_recompressed_first_loses_less_in_bf16(
    task: Task, trained: Trained
) -> None:
    found = bf16.measure_conversions(task, RATES[0], trained.initial, trained.final)
    errors = {
        way: mean(row.value for row in found if row.way == way)
        for way in (bf16.SHARE, bf16.CAST, bf16.RECOMPRESSED)
    }
    assert 0 < errors[bf16.SHARE] < 1
    assert errors[bf16.RECOMPRESSED] < 0.004 < errors[bf16.CAST]


def test_the_tables_have_every_rate_and_every_start(
    task: Task, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    report.print_training("title", rows)
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[-2:]] == ["0.001", "0.01"]
    assert all(f"{start}: held-out loss" in printed for start in report.STARTS)
    values = report.final_values(rows, "training loss")
    last = [row.value for row in rows if row.step == task.steps and row.metric == "training loss"]
    assert [value for by_seed in values.values() for value in by_seed.values()] == last


def test_the_picture_has_a_panel_for_each_rate_and_two_curves_in_it(rows: list[Row]) -> None:
    drawn = draw([report.panels("title", rows)])
    found = ElementTree.fromstring(drawn)
    name = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in found.iter(f"{name}text")]
    assert [text for text in texts if str(text).startswith("rate ")] == ["rate 0.001", "rate 0.01"]
    curves = [path for path in found.iter(f"{name}path") if "curve" in str(path.get("class"))]
    assert len(curves) == 2 + 2 * len(RATES)  # those of the legend, too
    assert "prefers-color-scheme: dark" in drawn

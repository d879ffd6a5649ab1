"""`make bench-merge` in small: what has to hold for a base and its fine-tunes, on trained ones."""

import importlib.util
import re
from itertools import combinations
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.merging import tasks_digits, tasks_llama
from benchmarks.merging.masks import bits_of
from benchmarks.merging.methods import METHODS, Merged, mean_score, mergeable
from benchmarks.merging.picture import Panel, Point, draw
from benchmarks.merging.run import METHODS as ALL_METHODS
from benchmarks.merging.run import measure, panel, summarise
from benchmarks.merging.suite import Suite

SEED = 0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def digits(models: Path) -> Suite:
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("scikit-learn, which `make bench-merge` installs, has the digits")
    recipe = tasks_digits.Recipe(("rot90", "invert"), hidden=64, base_steps=150, steps=80)
    return tasks_digits.make_suite(models, SEED, recipe)


def llama(models: Path) -> Suite:
    recipe = tasks_llama.Recipe(
        ("shift", "sort"),
        hidden=48,
        layers=2,
        heads=2,
        intermediate=96,
        base_batch=32,
        base_steps=100,
        base_learning_rate=3e-3,
        steps=60,
        learning_rate=1e-3,
        n_test=100,
    )
    return tasks_llama.make_suite(models, SEED, recipe)


@pytest.fixture(scope="module", params=[digits, llama])
def suite(request: pytest.FixtureRequest, models: Path) -> Suite:
    torch.set_num_threads(1)
    return request.param(models)


@pytest.fixture(scope="module")
def merged(suite: Suite) -> dict[str, Merged]:
    return {name: method(suite) for name, method in METHODS.items()}


def test_no_merge_is_better_than_the_fine_tunes(suite: Suite, merged: dict[str, Merged]) -> None:
    scores = {name: mean_score(suite.tasks, found) for name, found in merged.items()}
    assert scores["individual"] == max(scores.values())
    assert scores["individual"] > scores["base"] + 0.1
    assert scores["task arithmetic"] >= scores["average"]  # one of its scales is a half
    assert min(scores["EMR"], scores["BitDelta"]) > scores["base"]


def test_what_is_kept_for_more_tasks_takes_more_bytes(merged: dict[str, Merged]) -> None:
    sizes = {name: found.size_bytes for name, found in merged.items()}
    assert sizes["base"] == sizes["average"] == sizes["task arithmetic"]
    assert sizes["average"] < sizes["BitDelta"] < sizes["EMR"]
    assert sizes["average"] < sizes["individual"]


def test_a_merge_of_one_fine_tune_by_emr_is_that_fine_tune(suite: Suite) -> None:
    alone = Suite(suite.name, suite.seed, suite.base, suite.tasks[:1], suite.folder)
    (weights,) = METHODS["EMR"](alone).weights
    assert all(torch.equal(weights[name], alone.tasks[0].weights[name]) for name in weights)


def test_emr_moves_an_element_only_in_the_direction_of_the_fine_tune(
    suite: Suite, merged: dict[str, Merged]
) -> None:
    for task, weights in zip(suite.tasks, merged["EMR"].weights, strict=True):
        for name in mergeable(suite):
            base = suite.base[name]
            wanted, found = task.weights[name].double() - base, weights[name].double() - base
            assert bool((found * wanted >= 0).all()), name
        assert all(torch.equal(weights[name], task.weights[name]) for name in task.kept)


def test_a_stock_client_generates_the_answers_that_were_scored(models: Path) -> None:
    task = llama(models).tasks[0]
    model = AutoModelForCausalLM.from_pretrained(task.folder, dtype=torch.float32)
    letters = [3, 1, 4, 1, 5, 9, 2, 6]
    tokens = torch.tensor([tasks_llama.question("shift", letters)])
    options = {"attention_mask": torch.ones_like(tokens), "max_new_tokens": 20, "do_sample": False}
    found = model.generate(tokens, **options)[0, tokens.shape[1] :].tolist()
    assert found == [(letter + 7) % tasks_llama.LETTERS for letter in letters] + [tasks_llama.END]


def test_what_was_trained_is_loaded(
    request: pytest.FixtureRequest, suite: Suite, models: Path
) -> None:
    files = {task.name: task.folder.stat().st_mtime_ns for task in suite.tasks}
    make = request.node.callspec.params["suite"]
    again = make(models)
    assert {task.name: task.folder.stat().st_mtime_ns for task in again.tasks} == files
    for task, same in zip(suite.tasks, again.tasks, strict=True):
        assert task.score(task.weights) == same.score(same.weights)


def test_a_table_has_a_line_for_each_method_and_the_picture_a_point(suite: Suite) -> None:
    rows = measure(suite)
    lines = summarise(rows)
    assert [line.method for line in lines] == list(ALL_METHODS)
    metric = next(iter(lines[0].scores))
    scores = [row.score for row in rows if (row.method, row.metric) == ("individual", metric)]
    assert lines[0].scores[metric][0] == pytest.approx(sum(scores) / len(scores))
    points = panel("title", lines).points
    assert [point.name for point in points] == list(ALL_METHODS)
    assert (points[0].name, points[0].bytes_percent) == ("individual", 100)


def test_names_in_the_picture_do_not_lie_upon_each_other() -> None:
    crowd = [Point(f"method {i}", 12 + i, score) for i, score in enumerate([30, 31, 31, 90, 91])]
    panels = [Panel("title", "accuracy", [Point("individual", 100, 94), *crowd])]
    label = r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]* at \d+ %)</text>'
    names = [(float(x), float(y), text) for x, y, text in re.findall(label, draw(panels))]
    assert len(names) == 6
    for (x, y, text), (other_x, other_y, other) in combinations(names, 2):
        assert x != other_x or abs(y - other_y) >= 16, (text, other)


def test_masks_together_take_no_more_bits_than_alone(suite: Suite) -> None:
    alone, together = bits_of(suite)
    # Of two masks, one is 1 wherever the unified model changes: half of that is left at least.
    assert 0.3 < together < alone < 1

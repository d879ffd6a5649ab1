"""`make bench-transfer` in small: a real move, its rows, and the rules that are judged by them."""

import random
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from benchmarks.transfer import report
from benchmarks.transfer.bases import Recipe as BasesRecipe
from benchmarks.transfer.bases import make_base
from benchmarks.transfer.moves import METHODS, Move, Row, stored_inputs, stored_row
from benchmarks.transfer.owner import Recipe, make_owned
from benchmarks.transfer.picture import draw
from benchmarks.transfer.policies import Outcome, policies
from benchmarks.transfer.ports import likeness
from benchmarks.transfer.tasks import TITLES, make_task
from benchmarks.transfer.world import document, tokenizer

RECIPE = Recipe(
    bases=BasesRecipe(
        hidden=32,
        layers=1,
        apart_hidden=48,
        apart_layers=1,
        batch=16,
        steps=120,
        longer_steps=10,
        learning_rate=6e-3,
    ),
    n_private=60,
    n_tests=40,
    steps=60,
    batch=16,
    discriminator_epochs=20,
)


# Times differ between two runs.
MEASURED = dict.fromkeys(("draw_seconds", "filter_seconds", "label_seconds"), 0.0)


@pytest.fixture(scope="module")
def move(tmp_path_factory: pytest.TempPathFactory) -> tuple[Move, Path]:
    torch.set_num_threads(1)
    models = tmp_path_factory.mktemp("models")
    owned = make_owned(models, "median", 0, RECIPE)
    again = make_owned(models, "median", 0, RECIPE)
    assert all(torch.equal(each, again.adapter[name]) for name, each in owned.adapter.items())
    return Move(owned, make_base(models, "longer", RECIPE.bases), RECIPE), models / "moves"


def test_a_move_is_measured_once_and_gives_the_same_answers_again(
    move: tuple[Move, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    moving, folder = move
    inputs = stored_inputs(moving, folder)
    assert len(inputs.learnt) == 4 * len(inputs.held_out) == 48
    assert not {each.text for each in inputs.learnt} & {each.text for each in inputs.held_out}
    assert moving.owned.task.shown(inputs.learnt, moving.owned.tests) is None
    private = {each.text for each in moving.owned.private[:5]}
    assert not private & {each.text for each in [*inputs.learnt, *inputs.held_out]}
    alike = likeness(moving.owned, moving.target)
    assert alike is not None
    assert alike > 0.9
    rows = {name: stored_row(moving, name, folder) for name in ("source", "copy", "Trans-LoRA")}
    assert rows["source"].agreed == rows["source"].n_held_out == 12
    assert rows["source"].broken == rows["source"].repaired == 0
    copied = moving.measure("copy", inputs)
    assert (copied.right, copied.agreed) == (rows["copy"].right, rows["copy"].agreed)
    warm = moving.measure("warm start", inputs)
    # Of twelve inputs, none of these small ports surely answers more than the new base alone.
    assert (warm.start, warm.right) == ("", rows["Trans-LoRA"].right)
    monkeypatch.setattr(moving, "measure", None)
    assert stored_row(moving, "Trans-LoRA", folder) == rows["Trans-LoRA"]


def test_siblings_have_the_same_inputs_and_other_secrets() -> None:
    one, other = make_task("table", 0), make_task("table", 0, 1)
    assert one.places == other.places
    first, second = (each.examples(20) for each in (one, other))
    assert all(one.has(each.text) for each in second)
    assert {each.text for each in first} != {each.text for each in second}
    assert any(one.answer(each.text) != each.completion for each in second)
    again = make_task("table", 0, 1)
    assert again.examples(20) == second


def test_a_sibling_draws_nothing_that_the_first_adapter_has_drawn(
    move: tuple[Move, Path],
) -> None:
    moving, folder = move
    known: dict[int, list[str]] = {}
    drawn = Move(moving.owned, moving.target, RECIPE, known=known).make_inputs()
    assert asdict(drawn) | MEASURED == asdict(stored_inputs(moving, folder)) | MEASURED
    pooled = Move(moving.owned, moving.target, RECIPE, [moving.owned.seeds], known)
    again = pooled.make_inputs()
    assert again.learnt == drawn.learnt
    assert again.draw_seconds < drawn.draw_seconds / 10


def test_every_document_is_read_without_an_unknown_token() -> None:
    rng = random.Random(0)
    for reading in ("words", "characters"):
        reader = tokenizer(reading)
        for _ in range(100):
            text = document(rng)
            ids = reader(text).input_ids
            assert reader.unk_token_id not in ids
            assert reader.decode(ids) == text


def test_examples_belong_to_their_task_and_differ_between_seeds() -> None:
    for name in TITLES:
        task, other = make_task(name, 0), make_task(name, 1)
        examples = task.examples(100)
        assert len({each.text for each in examples}) == 100
        assert all(task.has(each.text) for each in examples)
        assert examples[:50] == task.examples(50)
        assert sum(other.has(each.text) for each in examples) < 50
        assert not task.has(examples[0].text + "0")
        wanted = None if name == "median" else 1.0
        assert task.shown(examples, examples[:10]) == wanted


def row(method: str, right: int | None, agreed: int | None, seconds: float = 1) -> Row:
    return Row("table", 0, "longer", method, 100, right, 50, agreed, 0, 0, seconds, "")


def outcomes(copy: tuple[int, int], trained: tuple[int, int]) -> dict[str, Outcome]:
    """Of one move: right and agreed, of a copy and of Trans-LoRA."""
    rows = [
        row("source", 98, 50, 0), row("target", 10, 5, 0), row("copy", *copy),
        row("activation map", 20, 10), row("Trans-LoRA", *trained, 10), row("TiTok", None, None, 0),
        row("retrained", 99, 50, 8), row("unfiltered", 100, 50),
    ]  # fmt: skip
    return {each.policy: each for each in policies(rows)}


def test_the_gate_takes_the_cheapest_good_way_and_pays_for_all_that_it_tried() -> None:
    found = outcomes(copy=(97, 50), trained=(98, 50))
    gate = found["gate"]
    assert (gate.chosen, gate.is_moved, gate.lost) == ("copy", True, False)
    assert gate.cpu_seconds == 12
    assert gate.regret == pytest.approx(0.02)
    assert gate.promise == pytest.approx(0.98 - 0.0713, abs=1e-3)
    assert found["always retrain"].regret == 0
    assert found["never move"].accuracy == 0.98


def test_the_gate_keeps_the_old_base_where_a_copy_always_would_lose() -> None:
    found = outcomes(copy=(40, 20), trained=(70, 35))
    assert (found["gate"].chosen, found["gate"].promise) == ("source", None)
    assert found["gate"].regret == pytest.approx(0.01)
    assert found["always copy"].lost
    assert found["always copy"].regret == pytest.approx(0.59)


def test_tables_and_picture_show_what_is_not_possible(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(name, None if name == "copy" else 50, 25) for name in METHODS]
    titles = {"table": "a <table>"}
    rows += [Row(**{**vars(each), "target": "apart"}) for each in rows]
    report.print_methods(titles, rows)
    report.print_policies(policies(rows))
    printed = capsys.readouterr().out
    assert "not possible" in printed
    assert "the gate kept its promise of accuracy in 0 of 0 moves" in printed
    svg = ElementTree.fromstring(draw(report.panels(titles, rows)))
    texts = [each.text for each in svg.iter() if each.text]
    assert texts.count("not possible") == 2
    assert "table: a <table>" in texts

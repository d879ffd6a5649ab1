"""pairs.toml names every case that the figures are promised for, and its training is exact."""

import dataclasses
from pathlib import Path

import pytest
import torch

from benchmarks.pairs.layout import Cache
from benchmarks.pairs.loop import Schedule, generator_of, train
from benchmarks.pairs.recipes import DTYPES, LlamaBase, Recipes, load_recipes
from benchmarks.pairs.run import jobs_of


@pytest.fixture(scope="module")
def recipes() -> Recipes:
    return load_recipes()


def test_every_case_is_there(recipes: Recipes) -> None:
    pairs = recipes.pairs.values()
    grid = {(rate, decay) for rate in (1e-5, 5e-5, 1e-4) for decay in (0.0, 0.01)}
    for base in ("llama", "minilm"):
        full = [p for p in pairs if p.base == base and p.method == "full"]
        assert {(p.learning_rate, p.weight_decay) for p in full} >= grid
    assert {p.method for p in pairs if p.base == "llama"} >= {
        "full", "bf16", "lora", "frozen", "extended", "snapshot",
    }  # fmt: skip
    assert "unrelated" in {p.method for p in pairs}
    for base in ("llama", "wide"):
        merged = [p for p in pairs if p.base == base and p.method == "lora"]
        assert {(p.adapter, p.rank) for p in merged} == {("F32", 16), ("BF16", 16)}
    wide = recipes.bases["wide"]
    assert isinstance(wide, LlamaBase)
    assert (wide.hidden, wide.layers) == (2048, 2)


def test_every_fine_tune_has_400_steps_and_every_dtype(recipes: Recipes) -> None:
    trained = [pair for pair in recipes.pairs.values() if pair.is_trained]
    assert min(pair.steps for pair in trained) >= 400
    for pair in trained:
        assert sorted(d for run in pair.runs for d in run.saves) == sorted(DTYPES)


def test_two_merges_of_one_adapter_train_it_once(recipes: Recipes) -> None:
    names = ["llama-lora-f32-adapter", "llama-lora-bf16-adapter"]
    jobs = jobs_of(Cache(Path("cache"), recipes), names)
    assert [job.label.split(", ")[-1] for job in jobs] == [
        "base llama",
        "training",
        "files",
        "files",
    ]
    assert len({job.final for job in jobs}) == 4


def test_another_recipe_is_another_folder(recipes: Recipes) -> None:
    pair = recipes.pairs["llama-full-1e-5-wd0.01"]
    other = dataclasses.replace(pair, seed=2)
    assert recipes.files_digest(pair) != recipes.files_digest(other)
    assert recipes.run_digest(pair, pair.runs[0]) != recipes.run_digest(other, pair.runs[0])


@pytest.mark.parametrize("is_bf16", [False, True])
def test_a_training_that_was_killed_ends_where_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_bf16: bool
) -> None:
    # A state is written after every step; the interruption comes at the fifth.
    monkeypatch.setattr("benchmarks.pairs.loop.SAVE_EVERY_S", -1.0)
    schedule = Schedule(8, 1e-2, 0.01, seed=3, is_bf16=is_bf16)

    def run(state: Path, stop_at: int | None) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Dropout(0.5))

        def loss(step: int) -> torch.Tensor:
            if step == stop_at:
                raise KeyboardInterrupt
            inputs = torch.randn(4, 6, generator=generator_of(schedule.seed, step))
            return model(inputs).square().sum()

        train(model, loss, schedule, state, "tiny")
        return model.state_dict()

    whole = run(tmp_path / "whole.pt", None)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut.pt", 5)
    resumed = run(tmp_path / "cut.pt", None)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    if is_bf16:
        assert all(torch.equal(t, t.bfloat16().float()) for t in whole.values())

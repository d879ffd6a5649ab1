"""What the report says of transformers with peft is what the installed PEFT does."""

import json
from collections.abc import Mapping

import pytest
import torch
from safetensors.torch import load, save

from deltahub.methods.adapters.inspection.fit import TensorShape
from deltahub.methods.adapters.inspection.report import BaseAtHand, inspect_adapter
from support.models.saved_adapters import (
    OPTIONS,
    Saved,
    base_tensors,
    logits_of,
    new_base,
    reloaded_logits,
    saved,
)

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
# float32, of outputs of about 5.
SAME = 1e-4
OTHER = 0.05


@pytest.fixture(scope="module")
def llama() -> dict[str, TensorShape]:
    return base_tensors()


@pytest.mark.parametrize("kind", OPTIONS)
def test_peft_gives_the_logits_of_the_training_where_the_report_says_loads_and_only_there(
    kind: str, llama: dict[str, TensorShape]
) -> None:
    adapter = saved(kind)
    assert distance(adapter, logits_of(new_base())) > OTHER
    answer = answer_of(adapter, BaseAtHand("org/base", llama))
    if answer == "loads":
        assert distance(adapter, loaded(adapter.files)) < SAME
    else:
        assert answer == "does not load"
        assert distance(adapter, loaded(adapter.files)) > OTHER


@pytest.mark.parametrize("fault", ["no B", "another rank", "a module less", "no head"])
def test_peft_does_not_give_them_where_the_report_finds_a_fault(
    fault: str, llama: dict[str, TensorShape]
) -> None:
    adapter = saved("head")
    weights = load(adapter.files[WEIGHTS])
    config = json.loads(adapter.config)
    if fault == "another rank":
        config["r"] = 8
    dropped = {"no B": "0.self_attn.q_proj.lora_B", "a module less": "0.self_attn.q_proj.lora"}
    dropped["no head"] = "lm_head"
    weights = {
        name: tensor
        for name, tensor in weights.items()
        if fault not in dropped or dropped[fault] not in name
    }
    files = {WEIGHTS: save(weights), CONFIG: json.dumps(config).encode()}
    answer = answer_of(Saved(files, adapter.logits), BaseAtHand("org/base", llama))
    assert answer == "does not load"
    assert distance(adapter, loaded(files)) > OTHER


def answer_of(adapter: Saved, base: BaseAtHand) -> str:
    report = inspect_adapter(adapter.config, adapter.tensors, adapter.files, base, "org/adapter")
    (verdict,) = (each for each in report.verdicts if each.engine == "transformers with peft")
    return verdict.verdict


def loaded(files: Mapping[str, bytes]) -> torch.Tensor | None:
    """The logits; None if PEFT raises an error."""
    try:
        return reloaded_logits(files, new_base())
    except (ValueError, RuntimeError, KeyError):
        return None


def distance(adapter: Saved, logits: torch.Tensor | None) -> float:
    """The largest difference from the logits of the training."""
    return float("inf") if logits is None else float((adapter.logits - logits).abs().max())

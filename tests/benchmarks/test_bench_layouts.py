"""The benchmark of layouts saves the same weights in each, and tells what a push would send."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.codecs.layouts import forms
from benchmarks.codecs.layouts.model import EXPERTS, Tensors
from benchmarks.codecs.layouts.run import stored_bytes
from support.models import tiny_models as tiny


def experts_of(model: tiny.Tensors) -> Tensors:
    """Parts of a trained matrix as a layer of attention and experts."""
    rows = model["up.weight"].to(torch.bfloat16)
    made: Tensors = {"model.embed_tokens.weight": model["embedding.weight"].to(torch.bfloat16)}
    for part, size, begin in (("q", 24, 0), ("k", 12, 24), ("v", 12, 36)):
        name = f"model.layers.0.self_attn.{part}_proj.weight"
        made[name] = rows[begin : begin + size].contiguous()
    for i in range(EXPERTS):
        for j, part in enumerate(("w1", "w2", "w3")):
            begin = 48 + 12 * (3 * i + j)
            name = f"model.layers.0.mlp.experts.{i}.{part}.weight"
            made[name] = rows[begin : begin + 12].contiguous()
    return made


@pytest.mark.parametrize("form", [forms.fused, forms.stacked_transposed, forms.fp8_rows])
def test_a_fine_tune_in_another_layout_costs_less_than_by_names_alone(
    tmp_path: Path, form: Callable[[Tensors], Tensors]
) -> None:
    base, tune = tmp_path / "base.safetensors", tmp_path / "tune.safetensors"
    save_file(experts_of(tiny.base()), base)
    save_file(form(experts_of(tiny.finetune(1e-5))), tune)
    assert stored_bytes(base, tune) < 0.7 * stored_bytes(base, tune, by_names=True)


def test_layouts_hold_the_same_weights() -> None:
    tensors = experts_of(tiny.base())
    count = sum(tensor.numel() for tensor in tensors.values())
    for form in (forms.same, forms.fused, forms.stacked, forms.transposed):
        assert sum(tensor.numel() for tensor in form(tensors).values()) == count
    assert "model.layers.0.mlp.experts.w13.weight" in forms.stacked(tensors)
    scaled = forms.fp8_rows(tensors)
    name = "model.layers.0.mlp.experts.3.w2.weight"
    back = scaled[name].float() * scaled[f"{name}_scale"].float()[:, :1]
    assert torch.allclose(back, tensors[name].float(), rtol=0.08, atol=1e-4)

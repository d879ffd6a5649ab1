"""What the benchmark of merged adapters takes an adapter's bytes for."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.codecs.adapters import adapter_bytes


def test_an_adapter_takes_two_bytes_an_element_of_both_factors(tmp_path: Path) -> None:
    prefix = "base_model.model.model.layers.0.mlp.up_proj"
    factors = {
        f"{prefix}.lora_A.weight": torch.zeros(4, 32),
        f"{prefix}.lora_B.weight": torch.zeros(96, 4),
    }
    save_file(factors, tmp_path / "adapter_model.safetensors")
    expected = {"model.layers.0.mlp.up_proj.weight": 2 * 4 * (32 + 96)}
    assert adapter_bytes(tmp_path) == expected
    assert adapter_bytes(tmp_path / "adapter_model.safetensors") == expected

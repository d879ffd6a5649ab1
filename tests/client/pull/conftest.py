"""A run whose checkpoints are pushed and pulled."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A folder for a run of checkpoints: each `next` writes one as a folder of its own."""

    def folders() -> Iterator[Path]:
        torch.manual_seed(1)
        weights = torch.randn(600, 1024) * 0.05
        for number in range(20):
            folder = tmp_path / f"checkpoint-{number}"
            folder.mkdir()
            save_file({"w": weights.to(torch.bfloat16)}, folder / "model.safetensors")
            yield folder
            weights += torch.randn_like(weights) * 0.00004

    return folders()

"""Where bases, runs and pairs lie in the cache, and how tensors are written and read there.

    bases/<name>-<digest>/<dtype>/model.safetensors          and snapshot/<dtype>/...
    runs/<digest>/weights.safetensors                        F32, as trained
    pairs/<name>-<digest>/<dtype>/{base,fine_tune}.safetensors

A folder appears whole or not at all.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.pairs.recipes import Pair, Recipes, Run

if TYPE_CHECKING:
    import torch

DEFAULT_CACHE = Path(os.environ.get("DELTAHUB_BENCH_PAIRS", ".cache/pairs"))
MODEL = "model.safetensors"
SNAPSHOT = "snapshot"
REPORT = "report.json"


@dataclass(frozen=True)
class Cache:
    root: Path
    recipes: Recipes

    def base(self, name: str) -> Path:
        return self.root / "bases" / f"{name}-{self.recipes.base_digest(name)}"

    def run(self, pair: Pair, run: Run) -> Path:
        return self.root / "runs" / self.recipes.run_digest(pair, run)

    def pair(self, pair: Pair) -> Path:
        return self.root / "pairs" / f"{pair.name}-{self.recipes.files_digest(pair)}"

    def files(self, pair: Pair, dtype: str) -> tuple[Path, Path]:
        """(base, fine-tune); they are there once bench-pairs has made the pair."""
        folder = self.pair(pair) / dtype
        return folder / "base.safetensors", folder / "fine_tune.safetensors"

    def scratch(self, final: Path) -> Path:
        """An empty folder beside the final one, whatever a killed run left there."""
        folder = final.with_name(f".making-{final.name}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def state(self, final: Path) -> Path:
        """Where a training that may be killed keeps its place."""
        folder = self.root / "states"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{final.name}.pt"


def publish(folder: Path, final: Path, report: Mapping[str, Any]) -> None:
    (folder / REPORT).write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    folder.rename(final)


def is_made(final: Path) -> bool:
    return (final / REPORT).is_file()


def torch_dtype(name: str) -> "torch.dtype":
    import torch

    return {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]


def save(tensors: "Mapping[str, torch.Tensor]", path: Path, dtype: str) -> None:
    """Floats rounded to the dtype; integers as they are."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = torch_dtype(dtype)
    rounded = {
        name: (tensor.detach().to(wanted) if tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(rounded, path, metadata={"format": "pt"})


def load(path: Path) -> "dict[str, torch.Tensor]":
    from safetensors.torch import load_file

    return load_file(path)

"""Folders of really trained models, as a trainer would push them."""

import json
from pathlib import Path

import torch

from support.models.tiny_models import Tensors, base, cast, finetune, to_file

N_PARTS = 2


def base_tensors(dtype: torch.dtype = torch.float32) -> Tensors:
    """Several trained bases as the layers of one model of more than a mebibyte."""
    parts = (cast(base(seed), dtype) for seed in range(N_PARTS))
    return {
        f"model.{i}.{name}": tensor for i, part in enumerate(parts) for name, tensor in part.items()
    }


def tuned_tensors(learning_rate: float = 1e-4, dtype: torch.dtype = torch.float32) -> Tensors:
    """The same after fine-tuning every layer."""
    parts = (cast(finetune(learning_rate, seed), dtype) for seed in range(N_PARTS))
    return {
        f"model.{i}.{name}": tensor for i, part in enumerate(parts) for name, tensor in part.items()
    }


def write_model(folder: Path, tensors: Tensors, *, n_shards: int = 1, **config: str) -> Path:
    """A folder with config.json, README.md and the tensors, in shards with an index if asked."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "tiny", **config}))
    (folder / "README.md").write_text(f"# {folder.name}\n")
    if n_shards == 1:
        (folder / "model.safetensors").write_bytes(to_file(tensors))
        return folder
    names = list(tensors)
    weight_map = {}
    for i in range(n_shards):
        file_name = f"model-{i + 1:05}-of-{n_shards:05}.safetensors"
        shard = {name: tensors[name] for name in names[i::n_shards]}
        (folder / file_name).write_bytes(to_file(shard))
        weight_map.update(dict.fromkeys(shard, file_name))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """path -> bytes of every file below, links followed."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }

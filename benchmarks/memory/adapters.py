"""Peak memory of init kits and conversions: `python -m benchmarks.memory.adapters [--gib 4]`.

Makes a base of that size, shaped as Llama 3 8B, an init kit of it (rank 16, randomized), and
converts a PiSSA adapter of its first layer, whose initial factors the hub computes exactly. Prints
what the compute process took at most. Exit status 1 if that is more than 1 GiB.
"""

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hub import EmbeddedHub, run_cli, run_json, stop_in_order
from benchmarks.results_file import print_columns, write_results

LIMIT_MIB = 1024
_GIB = 1 << 30
# outputs x inputs of a layer's matrices.
_MATRICES = {
    "self_attn.q_proj": (4096, 4096), "self_attn.k_proj": (1024, 4096),
    "self_attn.v_proj": (1024, 4096), "self_attn.o_proj": (4096, 4096),
    "mlp.gate_proj": (14336, 4096), "mlp.up_proj": (14336, 4096), "mlp.down_proj": (4096, 14336),
}  # fmt: skip
_LAYER_BYTES = sum(2 * rows * columns for rows, columns in _MATRICES.values())
_RANK = 16
_PEAK = re.compile(r"the compute process took at most ([0-9,]+) MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=4.0, help="size of the base")
    parser.add_argument("--scratch", type=Path, help="where to put models and data meanwhile")
    arguments = parser.parse_args()
    stop_in_order()
    with tempfile.TemporaryDirectory(prefix="deltahub ", dir=arguments.scratch) as name:
        rows = run(Path(name), arguments.gib)
    print_columns(list(rows[0]), [[str(value) for value in row.values()] for row in rows])
    notes = [f"base: {arguments.gib:g} GiB, BF16, random; peak_mib: of the compute process"]
    write_results("memory-adapters", rows, ("numpy",), notes)
    raise SystemExit(0 if all(row["peak_mib"] <= LIMIT_MIB for row in rows) else 1)


def run(scratch: Path, gib: float) -> list[dict[str, Any]]:
    base, adapter = scratch / "base", scratch / "adapter"
    n_layers = max(1, round(gib * _GIB / _LAYER_BYTES))
    first = write_base(base, n_layers)
    with EmbeddedHub(scratch / "data", scratch / "hub.log") as hub:
        environment = hub.client_environment(scratch / "cache")
        run_cli(["push", str(base), "admin/base"], environment)
        rows = [asked(["pissa", "init", "admin/base"], environment)]
        write_adapter(adapter, first)
        push = ["push", str(adapter), "admin/adapter", "--base", "admin/base"]
        run_cli(push, environment)
        rows.append(asked(["adapter", "convert", "admin/adapter"], environment))
    return rows


def asked(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """How long a job took, and how much memory."""
    began = time.monotonic()
    job = run_json(command, environment)
    seconds = time.monotonic() - began
    log = run_json(["jobs", "show", job["id"]], environment)["log"]
    (peak,) = [match for line in log if (match := _PEAK.search(line["text"]))]
    n_bytes = int(peak[1].replace(",", "")) * 1e6
    return {"job": " ".join(command[:2]), "seconds": round(seconds, 1),
            "peak_mib": round(n_bytes / (1 << 20))}  # fmt: skip


def write_base(folder: Path, n_layers: int) -> dict[str, np.ndarray[Any, Any]]:
    """Random BF16 matrices, a file a layer; those of the first layer in single precision."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    first = {}
    for layer in range(n_layers):
        generator = torch.Generator().manual_seed(layer)
        tensors = {}
        for name, shape in _MATRICES.items():
            weight = (torch.randn(shape, generator=generator) * 0.02).to(torch.bfloat16)
            tensors[f"model.layers.{layer}.{name}.weight"] = weight
            if layer == 0:
                first[name] = weight.float().numpy()
        save_file(tensors, folder / f"model-{layer + 1:05d}-of-{n_layers:05d}.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return first


def write_adapter(folder: Path, weights: dict[str, np.ndarray[Any, Any]]) -> None:
    """A PiSSA adapter of the first layer, as if it was trained a little."""
    from safetensors.numpy import save_file

    from deltahub.methods.adapters.initial.principal import initial_factors, principal_spectrum

    folder.mkdir()
    random = np.random.default_rng(1)
    tensors = {}
    for name, weight in weights.items():
        found = principal_spectrum(weight, _RANK, iterations=32)
        factors = initial_factors(found, _RANK, 1.0)
        for letter, values in (("A", factors.down), ("B", factors.up)):
            learnt = values + random.normal(size=values.shape) * values.std() * 0.05
            key = f"base_model.model.model.layers.0.{name}.lora_{letter}.weight"
            tensors[key] = learnt.astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "peft_type": "LORA", "r": _RANK, "lora_alpha": _RANK, "init_lora_weights": "pissa",
        "base_model_name_or_path": "admin/base", "layers_to_transform": [0],
        "target_modules": [name.rpartition(".")[2] for name in _MATRICES],
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()

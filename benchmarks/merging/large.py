"""Time and memory of merging large models, beside mergekit's `ties` on the same models.

`python -m benchmarks.merging.large --gib 2 --tasks 4 --memory-gib 1 [--mergekit PYTHON]`

Makes a base of so many GiB (BF16, tensors of a Llama) and fine-tunes of it with realistic values,
pushes them to a hub of its own, and merges them by emr under a limit on the memory of the compute
process. mergekit runs after it, with the Python of an environment that has mergekit 0.1.5.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.hub import EmbeddedHub, run_cli, run_json

GIB = 1 << 30
HIDDEN, INTERMEDIATE, VOCABULARY = 2048, 5632, 32000
# Standard deviations of weights, and of what a fine-tune adds.
WEIGHT, MOVE = 0.02, 0.0004


def shapes_of(size_bytes: int) -> dict[str, tuple[int, ...]]:
    """Tensors of a Llama with as many layers as fill so many bytes of BF16."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    left, layer = size_bytes // 2 - 2 * VOCABULARY * HIDDEN, 0
    while left > 0:
        shapes = {
            **{f"self_attn.{each}_proj.weight": (HIDDEN, HIDDEN) for each in "qkvo"},
            "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
            "input_layernorm.weight": (HIDDEN,),
            "post_attention_layernorm.weight": (HIDDEN,),
        }
        for name, shape in shapes.items():
            found[f"model.layers.{layer}.{name}"] = shape
            left -= int(np.prod(shape))
        layer += 1
    return found | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}


def to_bf16(values: np.ndarray) -> np.ndarray:
    words = values.astype(np.float32).view(np.uint32)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)


def write_models(folder: Path, size_bytes: int, n_tasks: int) -> list[Path]:
    """The base and the fine-tunes, each a folder; one tensor of all is in memory at a time."""
    shapes = shapes_of(size_bytes)
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    layers = sum(1 for name in shapes if name.endswith("q_proj.weight"))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": layers,
        "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": VOCABULARY,
    }  # fmt: skip
    folders = [folder / name for name in ("base", *(f"task{i}" for i in range(n_tasks)))]
    files = []
    for path in folders:
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(config))
        files.append((path / "model.safetensors").open("wb"))
        files[-1].write(len(text).to_bytes(8, "little") + text)
    generator = np.random.default_rng(0)
    for shape in shapes.values():
        base = generator.standard_normal(int(np.prod(shape)), np.float32) * WEIGHT
        files[0].write(to_bf16(base).tobytes())
        for file in files[1:]:
            move = generator.standard_normal(base.size, np.float32) * MOVE
            file.write(to_bf16(base + move).tobytes())
    for file in files:
        file.close()
    return folders


def merge_by_hub(
    folders: list[Path], scratch: Path, memory_bytes: int, *, is_last: bool
) -> dict[str, float]:
    """Figures of the merge. is_last: the folders are deleted once they are pushed, for room."""
    limits = {"DELTAHUB_WORKER_COMPUTE_MEMORY_BYTES": str(memory_bytes)}
    log = scratch / "hub.log"
    with EmbeddedHub(scratch / "data", log, **limits) as hub:
        environment = hub.client_environment(scratch / "cache")
        for folder in folders:
            began = time.monotonic()
            command = ["push", str(folder), f"admin/{folder.name}"]
            base = ["--base", "admin/base"] if folder is not folders[0] else []
            run_cli([*command, *base], environment)
            print(f"pushed {folder.name} in {time.monotonic() - began:.0f} s", flush=True)
            if is_last:
                shutil.rmtree(folder)
        names = [f"admin/{folder.name}" for folder in folders[1:]]
        began = time.monotonic()
        command = ["merge", "emr", "--base", "admin/base", *names, "--name", "admin/merged"]
        job = run_json(command, environment)
        whole_s = time.monotonic() - began
        lines = [line["text"] for line in run_json(["jobs", "show", job["id"]], environment)["log"]]
    print("\n".join(f"  {line}" for line in lines), flush=True)
    found = {"whole_s": whole_s}
    for line in lines:
        seconds = re.fullmatch(r"(.*) in ([0-9.]+) s", line)
        if seconds and seconds[1] == "merged, and main made":
            found["main_s"] = float(seconds[2])
        memory = re.search(r"at most ([0-9.]+) (MB|GB) of memory", line)
        if memory and line.startswith("the compute process"):
            unit = {"MB": 1e6, "GB": 1e9}[memory[2]]
            found["memory_bytes"] = float(memory[1]) * unit
    return found


def merge_by_mergekit(python: Path, folders: list[Path], scratch: Path) -> dict[str, float]:
    models = "".join(
        f"  - model: {folder}\n    parameters: {{density: 0.2, weight: 1.0}}\n"
        for folder in folders[1:]
    )
    config = scratch / "ties.yaml"
    config.write_text(
        f"merge_method: ties\nbase_model: {folders[0]}\nmodels:\n{models}dtype: bfloat16\n"
    )
    program = (
        "import resource, sys; from mergekit.scripts.run_yaml import main\n"
        "sys.argv = ['mergekit-yaml', sys.argv[1], sys.argv[2], '--lazy-unpickle',"
        " '--no-copy-tokenizer']\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(os.cpu_count())}
    began = time.monotonic()
    run = subprocess.run(
        [str(python), "-c", program, str(config), str(scratch / "by mergekit")],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    if run.returncode != 0:
        raise SystemExit(f"mergekit failed:\n{run.stderr[-3000:]}")
    return {
        "whole_s": time.monotonic() - began,
        "memory_bytes": float(run.stdout.strip().splitlines()[-1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=0.5)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--memory-gib", type=float, default=1.0)
    parser.add_argument("--mergekit", type=Path, help="a Python that has mergekit 0.1.5")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deltahub merge ") as name:
        scratch = Path(name)
        size = round(arguments.gib * GIB)
        folders = write_models(scratch / "models", size, arguments.tasks)
        print(f"{arguments.tasks} fine-tunes and a base of {arguments.gib} GiB each", flush=True)
        limit = round(arguments.memory_gib * GIB)
        ours = merge_by_hub(folders, scratch, limit, is_last=arguments.mergekit is None)
        print(
            f"hub: merged, and main made in {ours['main_s']:.1f} s; with all branches"
            f" {ours['whole_s']:.1f} s; {ours['memory_bytes'] / 1e9:.2f} GB of memory at most",
            flush=True,
        )
        if arguments.mergekit is not None:
            theirs = merge_by_mergekit(arguments.mergekit, folders, scratch)
            print(
                f"mergekit: ties in {theirs['whole_s']:.1f} s;"
                f" {theirs['memory_bytes'] / 1e9:.2f} GB of memory at most\n"
                f"mergekit takes {theirs['whole_s'] / ours['main_s']:.2f} times as long, and"
                f" {theirs['memory_bytes'] / ours['memory_bytes']:.1f} times the memory"
            )


if __name__ == "__main__":
    main()

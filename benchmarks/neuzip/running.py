"""Memory and speed of one model that generates, in a process of its own:
`python -m benchmarks.neuzip.running FOLDER` prints a line of JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from deltahub.codecs.exports.file import FILE_NAME

_PROMPT: Final = 16  # tokens


@dataclass(frozen=True)
class Running:
    """resident_bytes: of all weights. matrix_bytes: of those that an export compresses, plain or
    compressed. forward_bytes: the most that the process grew by, with the weights, the files that
    are mapped, and one pass over the prompt; generate_bytes: with the generation, too.
    """

    resident_bytes: int
    matrix_bytes: int
    forward_bytes: int
    generate_bytes: int
    tokens_s: float
    cpu_ms_a_token: float


def run_apart(folder: Path, n_tokens: int, *, prefetch: bool = True) -> Running:
    """The figures of a model or an export, from a new process."""
    command = [sys.executable, "-m", "benchmarks.neuzip.running", str(folder)]
    command += ["--tokens", str(n_tokens)] + ([] if prefetch else ["--no-prefetch"])
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return Running(**json.loads(done.stdout.splitlines()[-1]))


def run_here(folder: Path, n_tokens: int, prefetch: bool) -> Running:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from benchmarks.neuzip.quality import matrices_of
    from deltahub.methods.inference.model import load_folder, resident_bytes
    from deltahub.methods.inference.modules import CompressedModule

    torch.set_num_threads(1)
    _warm_up(LlamaForCausalLM(LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=1,
    )))  # fmt: skip
    before = _start_of_peak()
    model: Any
    if (folder / FILE_NAME).is_file():
        model = load_folder(folder, prefetch=prefetch)
    else:
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    sources = [each.source for each in model.modules() if isinstance(each, CompressedModule)]
    prompt = torch.arange(_PROMPT)[None] + 1
    with torch.inference_mode():
        model(input_ids=prompt)
        forward = _peak_bytes() - before
        if sources:
            matrix_bytes = sum(each.size_bytes for each in sources)
        else:
            matrix_bytes = sum(each.nbytes for each in matrices_of(model).values())
        began, began_cpu = time.monotonic(), time.process_time()
        made = model.generate(
            prompt, do_sample=False, min_new_tokens=n_tokens, max_new_tokens=n_tokens
        )
        spent, spent_cpu = time.monotonic() - began, time.process_time() - began_cpu
    assert made.shape[1] == _PROMPT + n_tokens
    return Running(
        resident_bytes=resident_bytes(model),
        matrix_bytes=matrix_bytes,
        forward_bytes=forward,
        generate_bytes=_peak_bytes() - before,
        tokens_s=n_tokens / spent,
        cpu_ms_a_token=1000 * spent_cpu / n_tokens,
    )


def _warm_up(model: Any) -> None:
    """Load the code that a pass needs, so that it does not count as the model's memory."""
    import torch

    with torch.inference_mode():
        model.to(torch.bfloat16).generate(
            torch.ones(1, 2, dtype=torch.long), max_new_tokens=2, do_sample=False
        )


def _start_of_peak() -> int:
    """Bytes in memory now, from which the kernel's record of the most begins anew."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_bytes("VmRSS")


def _peak_bytes() -> int:
    return _status_bytes("VmHWM")


def _status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {key}: this needs Linux")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--no-prefetch", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    found = run_here(arguments.folder, arguments.tokens, not arguments.no_prefetch)
    print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()

"""A seeded base and fine-tune of any size, with values like those of trained models, streamed.

Weights are gaussian with a scale a row and a scale a column, rounded to BF16; the fine-tune adds
steps some two hundred times smaller with scales of their own; a tenth of the rows never moved.
At most some 200 MiB are held at once.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

GIB = 1 << 30
_CHUNK_ELEMENTS = 1 << 22
_WEIGHT = 0.02
_STEP = 1e-4  # deltas of about a fifth of the file, as full fine-tunes at 1e-5 have

F32 = npt.NDArray[np.float32]
U16 = npt.NDArray[np.uint16]
Shape = tuple[int, int]


@dataclass(frozen=True)
class Pair:
    """Two folders, each with model.safetensors and config.json, and the files' SHA-256."""

    base: Path
    fine_tune: Path
    base_sha256: str
    fine_tune_sha256: str
    size_bytes: int  # of each model.safetensors


def shapes(total_bytes: int) -> dict[str, Shape]:
    """BF16 tensors of about `total_bytes`: one of a quarter of it, the rest like a Llama's."""
    columns = 4096 if total_bytes >= GIB else 512
    found: dict[str, Shape] = {"model.embed_tokens.weight": (total_bytes // 8 // columns, columns)}
    remaining = total_bytes - 2 * total_bytes // 8
    layer = 0
    while remaining > 0:
        for name, rows in (
            ("self_attn.q_proj", columns),
            ("self_attn.k_proj", columns // 4),
            ("self_attn.v_proj", columns // 4),
            ("self_attn.o_proj", columns),
            ("mlp.gate_proj", columns * 7 // 2),
            ("mlp.up_proj", columns * 7 // 2),
        ):
            if remaining <= 0:
                break
            rows = min(rows, max(1, remaining // (2 * columns)))
            found[f"model.layers.{layer}.{name}.weight"] = (rows, columns)
            remaining -= 2 * rows * columns
            if remaining < 2 * columns:
                remaining = 0
        layer += 1
    return found


def write_pair(folder: Path, total_bytes: int, seed: int = 0) -> Pair:
    """Writes base and fine-tune below `folder`."""
    base, fine_tune = folder / "base", folder / "fine-tune"
    tensors = shapes(total_bytes)
    header = _header(tensors)
    digests = []
    for target in (base, fine_tune):
        target.mkdir(parents=True)
        config = {"architectures": ["LlamaForCausalLM"], "name": target.name}
        (target / "config.json").write_text(json.dumps(config))
    name = "model.safetensors"
    with (base / name).open("wb") as base_file, (fine_tune / name).open("wb") as tune_file:
        outputs = [(base_file, hashlib.sha256()), (tune_file, hashlib.sha256())]
        for parts in _contents(header, tensors, seed):
            for (file, digest), part in zip(outputs, parts, strict=True):
                _write(file, part)
                digest.update(part)
        digests = [digest.hexdigest() for _, digest in outputs]
    return Pair(base, fine_tune, *digests, (base / name).stat().st_size)


def _write(file: BinaryIO, data: bytes | memoryview) -> None:
    file.write(data)


def _header(tensors: dict[str, Shape]) -> bytes:
    position = 0
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for name, (rows, columns) in tensors.items():
        end = position + 2 * rows * columns
        entries[name] = {
            "dtype": "BF16",
            "shape": [rows, columns],
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _contents(
    header: bytes, tensors: dict[str, Shape], seed: int
) -> Iterator[tuple[bytes | memoryview, bytes | memoryview]]:
    yield header, header
    # Steps are cut from one pool at random places: drawing each of them would double the time.
    pool = np.random.default_rng([seed, 1]).standard_normal(3 * _CHUNK_ELEMENTS, np.float32)
    for number, (rows, columns) in enumerate(tensors.values()):
        random = np.random.default_rng([seed, 2, number])
        column_scale = np.exp(0.3 * random.standard_normal(columns, np.float32))
        step_scale = np.exp(0.5 * random.standard_normal(columns, np.float32))
        step = max(1, _CHUNK_ELEMENTS // columns)
        for first in range(0, rows, step):
            n = min(step, rows - first)
            base = random.standard_normal((n, columns), np.float32)
            base *= column_scale
            base *= _WEIGHT * np.exp(0.3 * random.standard_normal((n, 1), np.float32))
            base_words = to_bf16(base)
            begin = int(random.integers(len(pool) - n * columns))
            moves = pool[begin : begin + n * columns].reshape(n, columns) * step_scale
            has_moved = random.random((n, 1), np.float32) > 0.1
            moves *= _STEP * has_moved * np.exp(0.5 * random.standard_normal((n, 1), np.float32))
            moves += from_bf16(base_words).reshape(n, columns)
            yield memoryview(base_words).cast("B"), memoryview(to_bf16(moves)).cast("B")


def to_bf16(values: F32) -> U16:
    """Finite floats rounded to nearest even, as BF16 bit patterns, flat."""
    words = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    rounding = (words >> 16) & 1
    rounding += 0x7FFF
    rounding += words
    rounding >>= 16
    return rounding.astype(np.uint16)


def from_bf16(words: U16) -> F32:
    """The floats of BF16 bit patterns."""
    return (words.astype(np.uint32) << 16).view(np.float32)

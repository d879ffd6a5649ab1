"""Exports of a model in a folder, as the job `export_neuzip` makes them, without a hub."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from deltahub.codecs.exports.coding import SLICE_ELEMENTS, Coding, encode_slice
from deltahub.codecs.exports.file import FILE_NAME, export_metadata, part_name
from deltahub.methods.inference.sources import CODED_DTYPES, memory_of
from deltahub.methods.kinds.export_neuzip import ExportNeuzipArguments
from deltahub.methods.kinds.weights.choice import choose

_MODEL = "model.safetensors"
_CONFIGS = ("config.json", "generation_config.json")


def write_export(
    model: Path, out: Path, bits: int, block: int = 0, also: Sequence[int] = ()
) -> Path:
    """`out`, with an export of the model in the folder `model`, of one safetensors file.

    Embeddings and the head are plain, unlike in exports of the hub, which keep these compressed
    without loss: so all contenders have the same.
    """
    tensors = load_file(model / _MODEL)
    asked: dict[str, Any] = {"model": "a/b", "name": "a/c", "bits": bits, "block": block}
    arguments = ExportNeuzipArguments.model_validate(asked | {"also": also or None, "keep": None})
    known = {name: each for name, each in tensors.items() if each.dtype in CODED_DTYPES}
    shapes = {
        name: (CODED_DTYPES[each.dtype].name, tuple(each.shape)) for name, each in known.items()
    }
    rounded = _rounded(shapes)
    coded = {name: how for name, how in choose(shapes, arguments, model.name).coded.items()
             if name in rounded}  # fmt: skip
    written = {name: each for name, each in tensors.items() if name not in coded}
    for name, how in coded.items():
        for part, data in _parts(tensors[name], how).items():
            written[part_name(name, part)] = torch.frombuffer(data, dtype=torch.uint8)
    out.mkdir(parents=True, exist_ok=True)
    told = {name: (tuple(tensors[name].shape), how) for name, how in coded.items()}
    save_file(written, out / FILE_NAME, metadata=export_metadata(told))
    for name in _CONFIGS:
        if (model / name).is_file():
            shutil.copy(model / name, out / name)
    return out


def _rounded(shapes: dict[str, tuple[str, tuple[int, ...]]]) -> set[str]:
    """The names of the matrices that an export with fewer bits rounds."""
    asked = {"model": "a/b", "name": "a/c", "bits": "auto", "budget": 6}
    return {*choose(shapes, ExportNeuzipArguments.model_validate(asked), "the model").open}


def _parts(tensor: torch.Tensor, how: Coding) -> dict[str, bytearray]:
    """Part -> the frames of all slices."""
    words, step = memory_of(tensor.contiguous()), SLICE_ELEMENTS * how.dtype.itemsize
    found: dict[str, bytearray] = {part: bytearray() for part in how.parts}
    for begin in range(0, len(words), step):
        frames, _ = encode_slice(how, words[begin : begin + step])
        for part, frame in frames.items():
            found[part] += frame
    return found

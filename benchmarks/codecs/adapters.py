"""A merged adapter's frames beside it: `python -m benchmarks.codecs.adapters BASE TUNE ADAPTER`.

BASE and TUNE are safetensors files, TUNE with the adapter merged; ADAPTER is the folder or the file
that peft saved. Prints bytes over the adapter's bytes, each of its elements counting two, for each
matrix and for all of them. The exit status is 1 where all of them take more than --most times it.
"""

import argparse
from math import prod
from pathlib import Path

from benchmarks.codecs.model_file import ModelFile
from benchmarks.codecs.ours import Ours, verify
from benchmarks.codecs.tensors import PairOfFiles
from benchmarks.results_file import print_columns
from deltahub.codecs.protocol import Effort

_FILE = "adapter_model.safetensors"
_PREFIX, _FACTORS = "base_model.model.", (".lora_A", ".lora_B")


def adapter_bytes(path: Path) -> dict[str, int]:
    """Bytes of both factors in a dtype of 16 bits, by the name of the weight they are added to."""
    file = ModelFile.load(path / _FILE if path.is_dir() else path)
    found: dict[str, int] = {}
    for piece in file.pieces:
        name = (piece.name or "").removeprefix(_PREFIX)
        for factor in _FACTORS:
            if factor in name:
                target = name.replace(factor, "")
                found[target] = found.get(target, 0) + 2 * prod(piece.shape)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("fine_tune", type=Path)
    parser.add_argument("adapter", type=Path)
    parser.add_argument("--effort", choices=["default", "max"], default="default")
    parser.add_argument("--most", type=float, help="times the adapter's bytes that all may take")
    arguments = parser.parse_args()
    codec = Ours(Effort[arguments.effort.upper()])
    adapter = adapter_bytes(arguments.adapter)
    rows: list[list[str]] = []
    total = 0
    for tensor in PairOfFiles.load(arguments.base, arguments.fine_tune).tensors:
        if tensor.name not in adapter:
            continue
        frames = codec.encode(tensor)
        verify(codec, tensor, frames)
        size = sum(len(frame) for frame in frames)
        shape = " x ".join(map(str, tensor.shape))
        rows.append([tensor.name, shape, str(size), f"{size / adapter[tensor.name]:.3f}"])
        total += size
    if len(rows) != len(adapter):
        parser.error(
            f"{len(adapter) - len(rows)} of the adapter's weights are not in the fine-tune"
        )
    ratio = total / sum(adapter.values())
    rows.append(["all", "", str(total), f"{ratio:.3f}"])
    print_columns(["weight", "shape", "bytes", "times the adapter"], rows)
    raise SystemExit(arguments.most is not None and ratio > arguments.most)


if __name__ == "__main__":
    main()

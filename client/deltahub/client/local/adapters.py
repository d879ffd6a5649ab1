"""Looks at an adapter in a folder of this machine, without a hub."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from deltahub.client.errors import InvalidArgument
from deltahub.codecs._native import widen_words
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CodecError
from deltahub.codecs.files.safetensors import (
    LENGTH_BYTES,
    TensorInfo,
    header_length,
    parse_header,
)
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.adapters.factors import Factors, Values
from deltahub.methods.adapters.inspection.report import AdapterReport, BaseAtHand, inspect_adapter
from deltahub.methods.adapters.inspection.shapes import TensorShape
from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE, parse_config
from deltahub.methods.adapters.names import Kind, part_of
from deltahub.methods.errors import MethodError


def lint_folder(folder: Path, base: Path | None = None) -> AdapterReport:
    """The report on the adapter of a folder. base: a folder with the model that it belongs to.

    InvalidArgument if the folder has no adapter_config.json, or a file cannot be read.
    """
    config = folder / CONFIG_FILE
    if not config.is_file():
        raise InvalidArgument(f"{folder} has no {CONFIG_FILE}: it is no adapter as PEFT saves it")
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    own = folder / WEIGHTS_FILE
    at_hand = None
    if base is not None:
        at_hand = BaseAtHand(str(base), _shapes(sorted(base.glob("*.safetensors"))))
    try:
        tensors = _shapes([own] if own.is_file() else [])
        return inspect_adapter(config.read_bytes(), tensors, paths, at_hand, str(folder))
    except (MethodError, OSError) as exc:
        raise InvalidArgument(str(exc)) from exc


def factors_of(folder: Path) -> dict[str, Factors]:
    """Module -> the factors of its update, with s in B, of the plain LoRA in a folder.

    InvalidArgument for a folder that holds none, and for one that changed its base.
    """
    try:
        config = parse_config((folder / CONFIG_FILE).read_bytes(), str(folder))
        with (folder / WEIGHTS_FILE).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(min(LENGTH_BYTES, size))
            head += file.read(header_length(head, size) - LENGTH_BYTES)
            tensors = {each.name: each for each in parse_header(head, size).tensors}
            found: dict[str, dict[Kind, Values]] = {}
            for name, tensor in tensors.items():
                part = part_of(name)
                if part.kind in (Kind.A, Kind.B):
                    file.seek(tensor.start)
                    found.setdefault(part.module, {})[part.kind] = _values(file, tensor)
        alphas = config.scales_of(found)
        return {
            module: Factors(both[Kind.A], both[Kind.B]).scaled(
                config.scale(alphas[module], len(both[Kind.A]))
            )
            for module, both in found.items()
            if len(both) == 2
        }
    except (MethodError, CodecError, OSError) as exc:
        raise InvalidArgument(f"{folder} has no plain LoRA: {exc}") from exc


def _shapes(files: Iterable[Path]) -> dict[str, TensorShape]:
    found = {}
    for path in files:
        size = path.stat().st_size
        try:
            with path.open("rb") as file:
                head = file.read(min(LENGTH_BYTES, size))
                head += file.read(header_length(head, size) - LENGTH_BYTES)
            parsed = parse_header(head, size)
        except (CodecError, OSError) as exc:
            raise InvalidArgument(f"{path} cannot be read: {exc}") from exc
        for tensor in parsed.tensors:
            found[tensor.name] = TensorShape(tensor.dtype, tuple(tensor.shape))
    return found


def _values(file: BinaryIO, tensor: TensorInfo) -> Values:
    """A matrix of floats where the file is, in double precision."""
    if tensor.dtype not in ("F64", "F32", "F16", "BF16") or len(tensor.shape) != 2:
        raise InvalidArgument(
            f"{tensor.name} is {tensor.dtype} {list(tensor.shape)}, and only matrices of floats are"
            " compared"
        )
    words = memoryview(bytearray(file.read(tensor.end - tensor.start)))
    dtype = DType[tensor.dtype]
    out = np.empty(len(words) // dtype.itemsize, np.float64)
    widen_words(WORD_KINDS[dtype], words, out)
    return out.reshape(tensor.shape)

"""Looks at an adapter in a folder of this machine, without a hub."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from deltahub.client.errors import InvalidArgument
from deltahub.codecs._native import count_infinite, widen_words
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
from deltahub.methods.adapters.inspection.values import (
    is_disguised,
    with_disguise,
    with_odd_values,
)
from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE, parse_config
from deltahub.methods.adapters.names import Kind, part_of
from deltahub.methods.errors import MethodError

# Bytes that are looked at together; a multiple of the size of each element.
_PIECE: Final = 4 << 20


def lint_folder(folder: Path, base: Path | None = None) -> AdapterReport:
    """The report on the adapter of a folder, with what its values tell, and those of its base.

    base: a folder with the model that it belongs to. InvalidArgument if the folder has no
    adapter_config.json, or a file cannot be read.
    """
    config = folder / CONFIG_FILE
    if not config.is_file():
        raise InvalidArgument(f"{folder} has no {CONFIG_FILE}: it is no adapter as PEFT saves it")
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    own_file = folder / WEIGHTS_FILE
    try:
        own = _tensors([own_file] if own_file.is_file() else [])
        of_base = None if base is None else _tensors(sorted(base.glob("*.safetensors")))
        at_hand = None if of_base is None else BaseAtHand(str(base), _shapes(of_base))
        report = inspect_adapter(config.read_bytes(), _shapes(own), paths, at_hand, str(folder))
        odd = _first_odd(own)
        if odd is not None:
            return with_odd_values(report, odd)
        if report.state == "plain" and of_base is not None:
            known = of_base
            if is_disguised(
                (_shapes(own), lambda name: _matrix(own[name])),
                (_shapes(known), lambda name: _matrix(known[name])),
            ):
                return with_disguise(report)
        return report
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


@dataclass(frozen=True)
class _Tensor:
    path: Path
    info: TensorInfo


def _tensors(files: Iterable[Path]) -> dict[str, _Tensor]:
    found: dict[str, _Tensor] = {}
    for path in files:
        size = path.stat().st_size
        try:
            with path.open("rb") as file:
                head = file.read(min(LENGTH_BYTES, size))
                head += file.read(header_length(head, size) - LENGTH_BYTES)
            parsed = parse_header(head, size)
        except (CodecError, OSError) as exc:
            raise InvalidArgument(f"{path} cannot be read: {exc}") from exc
        found |= {tensor.name: _Tensor(path, tensor) for tensor in parsed.tensors}
    return found


def _shapes(tensors: Mapping[str, _Tensor]) -> dict[str, TensorShape]:
    return {
        name: TensorShape(each.info.dtype, tuple(each.info.shape)) for name, each in tensors.items()
    }


def _first_odd(tensors: Mapping[str, _Tensor]) -> str | None:
    """The first tensor with elements that are no numbers; None if there is none."""
    for name, each in tensors.items():
        info = each.info
        if info.dtype not in DType.__members__ or not DType[info.dtype].is_float:
            continue
        kind = WORD_KINDS[DType[info.dtype]]
        with each.path.open("rb") as file:
            file.seek(info.start)
            for start in range(info.start, info.end, _PIECE):
                piece = memoryview(bytearray(file.read(min(_PIECE, info.end - start))))
                if count_infinite(kind, piece):
                    return name
    return None


def _matrix(tensor: _Tensor) -> Values:
    """In single precision, as it is compared."""
    with tensor.path.open("rb") as file:
        file.seek(tensor.info.start)
        return _values(file, tensor.info).astype(np.float32)


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

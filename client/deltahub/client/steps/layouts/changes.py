"""What two steps differ in, as those layouts have it: bytes that zstd has compressed."""

import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import xxhash
import zstandard

from deltahub.client.errors import InvalidArgument
from deltahub.client.local.paths import disk_full, sync_folder
from deltahub.client.steps.memory import HeldStep, HeldTensor
from deltahub.codecs.files.new_header import new_header

Encoding = Literal["xor", "overwrite"]

CHECKSUM: Final = "xxh3-128"
_LEVEL: Final = 1
# Positions of bytes have 32 bits.
_MAX_POSITIONS: Final = 1 << 32
_MAX_FILE_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class Change:
    """A tensor that has changed. data: the compressed change; checksum: of its new bytes."""

    tensor: HeldTensor
    data: bytes
    checksum: str

    @property
    def name(self) -> str:
        return self.tensor.name or ""


def changes_between(old: HeldStep, new: HeldStep, encoding: Encoding) -> list[Change]:
    """The tensors of `new` that are not the bytes of `old`, by name.

    InvalidArgument unless both have the same names, shapes and types: the layouts cannot say else.
    """
    if {name: _kind(each) for name, each in old.tensors.items()} != {
        name: _kind(each) for name, each in new.tensors.items()
    }:
        raise InvalidArgument(
            f"steps {old.number} and {new.number} have other names, shapes or types of tensors,"
            " which no difference in this layout can say: begin a new folder with the later one"
        )

    def compare(name: str) -> Change:
        before, after = old.tensors[name], new.tensors[name]
        encoded = _xor(before, after) if encoding == "xor" else _overwrite(before, after)
        data = zstandard.ZstdCompressor(level=_LEVEL).compress(encoded)
        return Change(after, data, xxhash.xxh3_128_hexdigest(after.view))

    names = [name for name in sorted(new.tensors) if _has_changed(old, new, name)]
    with ThreadPoolExecutor(max(1, os.cpu_count() or 1)) as pool:
        return list(pool.map(compare, names))


def write_changes(folder: Path, names: str, changes: list[Change], *, checksums: bool) -> list[str]:
    """Writes the changes as tensors of bytes into safetensors files; the file of each, in order.

    names: a format of the number of the file and the number of files. checksums: also write them
    into the files' metadata, under the names of the tensors.
    """
    groups: list[list[Change]] = []
    size = 0
    for each in changes:
        if not groups or size + len(each.data) > _MAX_FILE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += len(each.data)
    places: list[str] = []
    for number, group in enumerate(groups):
        name = names.format(number=number, count=len(groups))
        metadata = {each.name: each.checksum for each in group} if checksums else {}
        header = new_header(((each.name, "U8", (len(each.data),)) for each in group), metadata)
        write_file(folder / name, header, *(each.data for each in group))
        places += [name] * len(group)
    return places


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    write_file(path, json.dumps(document, indent=1).encode())


def write_file(path: Path, *parts: bytes) -> None:
    """Writes a file that is whole and on the disk when this returns."""
    try:
        with path.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
    except OSError as exc:
        raise disk_full(exc, path) from exc


def publish(made: Path, folder: Path) -> None:
    """Gives a finished folder its name: engines see all of it or nothing.

    What is there is of an export that was killed before it could note it.
    """
    sync_folder(made)
    if folder.exists():
        shutil.rmtree(folder)
    made.rename(folder)
    sync_folder(folder.parent)


def _has_changed(old: HeldStep, new: HeldStep, name: str) -> bool:
    return old.tensors[name].tensor != new.tensors[name].tensor


def _kind(tensor: HeldTensor) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype, tensor.shape


def _xor(before: HeldTensor, after: HeldTensor) -> memoryview:
    return np.bitwise_xor(before.data, after.data).data


def _overwrite(before: HeldTensor, after: HeldTensor) -> bytes:
    """The number of changed bytes, their positions and their new values; all numbers in 32 bits."""
    if after.size >= _MAX_POSITIONS:
        raise InvalidArgument(
            f"{after.name} has {after.size} bytes, and the encoding overwrite counts them in 32"
            " bits: take xor"
        )
    (positions,) = np.nonzero(before.data != after.data)
    numbers = positions.astype("<u4")
    count = len(positions).to_bytes(4, "little")
    return b"".join((count, numbers.tobytes(), after.data[positions].tobytes()))

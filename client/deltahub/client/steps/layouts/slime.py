"""The layout of slime: a folder of `weight_v<version>` folders, each a Hugging Face checkpoint.

A version is whole, or the difference from the version before: then its index names the encoding,
its safetensors files have a compressed change for each changed tensor, and their metadata the
checksums of the new bytes. Version 0 is what the engines were started with. A whole version ends
all differences before it, so that a new engine begins there.
"""

from pathlib import Path
from typing import Final

from deltahub.client.steps.layouts.changes import (
    CHECKSUM,
    Change,
    Encoding,
    write_changes,
    write_json,
)

_FILE: Final = "model-{number:05d}-of-{count:05d}.safetensors"
_INDEX: Final = "model.safetensors.index.json"


def version_folder(root: Path, version: int) -> Path:
    return root / f"weight_v{version:06d}"


def write_version(folder: Path, version: int, changes: list[Change], encoding: Encoding) -> None:
    """Writes a version that is the difference from the one before into an empty folder."""
    places = write_changes(folder, _FILE, changes, checksums=True)
    index = {
        "metadata": {
            "version": f"{version:06d}",
            "base_version": f"{version - 1:06d}",
            "delta_encoding": encoding,
            "compression_format": "zstd",
            "checksum_format": CHECKSUM,
        },
        "weight_map": {each.name: place for each, place in zip(changes, places, strict=True)},
    }
    write_json(folder / _INDEX, index)

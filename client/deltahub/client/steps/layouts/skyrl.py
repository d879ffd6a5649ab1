"""The layout of SkyRL: folders `delta-<version>`, each a difference from the one before.

A manifest lists the changed tensors with the checksums of their new bytes, and where the payload of
each is: zstd of the exclusive or. Version 0 is the checkpoint that the workers were started with;
there are no whole versions.
"""

from pathlib import Path
from typing import Any, Final

from deltahub.client.errors import InvalidArgument
from deltahub.client.steps.layouts.changes import CHECKSUM, Change, write_changes, write_json
from deltahub.client.steps.tensors import framework_dtype

_FILE: Final = "delta-rank00000-file{number:06d}.safetensors"
MANIFEST: Final = "manifest.json"
# A whole checkpoint of the first step, for the workers to be started with.
BASE: Final = "base"


def version_folder(root: Path, version: int) -> Path:
    return root / f"delta-{version:08d}"


def write_version(folder: Path, version: int, changes: list[Change]) -> None:
    """Writes a version that is the difference from the one before into an empty folder."""
    places = write_changes(folder, _FILE, changes, checksums=False)
    records = [_record(each, place) for each, place in zip(changes, places, strict=True)]
    manifest = {
        "version": version,
        "base_version": version - 1,
        "tensors": records,
        "total_uncompressed_num_bytes": sum(each.tensor.size for each in changes),
        "total_compressed_num_bytes": sum(len(each.data) for each in changes),
        "payload_files": list(dict.fromkeys(places)),
    }
    write_json(folder / MANIFEST, manifest)


def _record(change: Change, place: str) -> dict[str, Any]:
    dtype = framework_dtype(change.tensor)
    if dtype is None:
        raise InvalidArgument(
            f"{change.name} has elements of type {change.tensor.dtype}, which torch does not have"
        )
    return {
        "name": change.name,
        "dtype": dtype,
        "shape": list(change.tensor.shape),
        "uncompressed_num_bytes": change.tensor.size,
        "compressed_num_bytes": len(change.data),
        "payload_file": place,
        "payload_key": change.name,
        "checksum": change.checksum,
        "checksum_algorithm": CHECKSUM,
    }

"""Readers of the layouts that engines read, written from their descriptions.

They share no code with the exporters: safetensors, zstandard, xxhash and numpy do the work.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard
from safetensors import safe_open
from safetensors.numpy import load_file


class SlimeEngine:
    """A host of slime's SGLang: its checkpoint, brought up to a version."""

    def __init__(self, local: Path, model_path: Path | None) -> None:
        self._local = local
        self.version = 0
        self.tensors: dict[str, bytes] = {}
        self.full_pulls = 0
        if model_path is not None:
            self._seed(model_path, 0)

    def pull(self, source: Path, target: int) -> None:
        """Seeds from the newest whole version, then applies each difference once, in order."""
        begin = target
        while begin > self.version and self._metadata(source, begin).get("delta_encoding"):
            begin -= 1
        if begin > self.version:
            self._seed(self._folder(source, begin), begin)
        for version in range(self.version + 1, target + 1):
            self._apply(source, version)

    def _folder(self, source: Path, version: int) -> Path:
        folder = source / f"weight_v{version:06d}"
        assert folder.is_dir(), f"version {version} is not published"
        return folder

    def _metadata(self, source: Path, version: int) -> dict[str, Any]:
        index = self._folder(source, version) / "model.safetensors.index.json"
        return json.loads(index.read_text())["metadata"] if index.exists() else {}

    def _seed(self, folder: Path, version: int) -> None:
        shutil.rmtree(self._local, ignore_errors=True)
        shutil.copytree(folder, self._local)
        self.tensors = read_checkpoint(self._local)
        self.version = version
        self.full_pulls += 1

    def _apply(self, source: Path, version: int) -> None:
        folder, metadata = self._folder(source, version), self._metadata(source, version)
        assert int(metadata["version"]) == version
        assert int(metadata["base_version"]) == self.version
        assert metadata["compression_format"] == "zstd"
        assert metadata["checksum_format"] == "xxh3-128"
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        seen = set()
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "np") as file:
                checksums = file.metadata()
                for name in file.keys():
                    assert index["weight_map"][name] == path.name
                    patch = file.get_tensor(name)
                    assert patch.dtype == np.uint8
                    new = patched(self.tensors[name], patch.tobytes(), metadata["delta_encoding"])
                    assert xxhash.xxh3_128(new).hexdigest() == checksums[name], name
                    self.tensors[name] = new
                    seen.add(name)
        assert seen == index["weight_map"].keys()
        self.version = version


class SkyRlWorker:
    """A worker of SkyRL: its checkpoint, brought up to a version."""

    def __init__(self, base: Path) -> None:
        self.tensors = read_checkpoint(base)
        self.version = 0

    def fetch(self, source: Path, target: int) -> None:
        for version in range(self.version + 1, target + 1):
            folder = source / f"delta-{version:08d}"
            manifest = json.loads((folder / "manifest.json").read_text())
            assert (manifest["version"], manifest["base_version"]) == (version, self.version)
            payloads = {name: load_file(folder / name) for name in manifest["payload_files"]}
            for record in manifest["tensors"]:
                assert record.keys() == {
                    "name", "dtype", "shape", "uncompressed_num_bytes", "compressed_num_bytes",
                    "payload_file", "payload_key", "checksum", "checksum_algorithm",
                }  # fmt: skip
                patch = payloads[record["payload_file"]][record["payload_key"]].tobytes()
                assert len(patch) == record["compressed_num_bytes"]
                old = self.tensors[record["name"]]
                assert len(old) == record["uncompressed_num_bytes"]
                new = patched(old, patch, "xor")
                assert record["checksum_algorithm"] == "xxh3-128"
                assert xxhash.xxh3_128(new).hexdigest() == record["checksum"]
                self.tensors[record["name"]] = new
            self.version = version


def patched(old: bytes, patch: bytes, encoding: str) -> bytes:
    """The bytes of a tensor after a compressed change."""
    plain = zstandard.ZstdDecompressor().decompress(patch)
    if encoding == "xor":
        return bytes(a ^ b for a, b in zip(old, plain, strict=True))
    assert encoding == "overwrite"
    count = int.from_bytes(plain[:4], "little")
    places = np.frombuffer(plain, "<u4", count, 4)
    new = bytearray(old)
    for place, value in zip(places, plain[4 + 4 * count :], strict=True):
        new[place] = value
    return bytes(new)


def read_checkpoint(folder: Path) -> dict[str, bytes]:
    """Name -> bytes of every tensor of a checkpoint in safetensors files."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        for name, about in json.loads(data[8:end]).items():
            if name != "__metadata__":
                first, last = about["data_offsets"]
                found[name] = data[end + first : end + last]
    return found

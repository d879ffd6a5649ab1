"""Scans: the recipe of a landed file, made once and kept on the disk until the file is ingested."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from deltahub.codecs.errors import CodecError, InvalidInput
from deltahub.codecs.files.recipe import Recipe, TensorRef
from deltahub.codecs.files.safetensors import DEFAULT_LIMITS, HeaderLimits
from deltahub.codecs.files.split import FilePlan, make_recipe, plan_file
from deltahub.codecs.ids import tensor_id
from deltahub.registry import failpoints
from deltahub.registry.db.models import File
from deltahub.registry.errors import DataLost
from deltahub.registry.landings.reader import LandingReader
from deltahub.registry.registry import Registry
from deltahub.registry.storage.local import translated
from deltahub.registry.storage.refusals import translated_store_errors

READ_BYTES = 4 << 20
# From this size on, hashing with several threads is faster.
LARGE_BYTES = 64 << 20
_NOTE = struct.Struct("<I")
_HASH = 32


@dataclass(frozen=True)
class Scan:
    """A file's recipe, before its tensors are stored. note: why it is no safetensors file."""

    recipe: Recipe
    recipe_bytes: bytes
    note: str | None

    @property
    def recipe_id(self) -> bytes:
        return tensor_id(self.recipe_bytes)

    def placed_tensors(self) -> Iterator[tuple[int, TensorRef]]:
        """(offset in the file, tensor) of every tensor segment."""
        position = 0
        for segment in self.recipe.segments:
            if isinstance(segment, TensorRef):
                yield position, segment
            position += segment.size


def landed_bytes(reg: Registry, file: File) -> LandingReader:
    """The bytes of a file that is not ingested; DataLost if it has no upload."""
    if file.landing_id is None:
        raise DataLost(f"file {file.sha256} has neither a recipe nor an upload")
    return LandingReader(reg, file.landing_id)


def scan_path(reg: Registry, file: File) -> Path:
    """Where the scan of a file is kept. If it is lost, the file is hashed again."""
    return reg.scratch / f"{file.domain_id}-{file.sha256}.scan"


def scan(
    reg: Registry,
    file: File,
    path: str,
    progress: Callable[[int], None] = lambda n: None,
) -> Scan:
    """Parse and hash a landed file, or load the scan of an earlier run.

    path: its path in the revision; only a .safetensors file is parsed. progress(n): called after
    every part of n bytes; may raise to stop.
    """
    kept = load(reg, file)
    if kept is not None:
        return kept
    landed = landed_bytes(reg, file)
    found = _scan(reg, file, path, landed, progress)
    failpoints.reached("ingest.scan.before_plan")
    _keep(scan_path(reg, file), found)
    return found


def load(reg: Registry, file: File) -> Scan | None:
    """The scan that an earlier run kept; None if it is lost or damaged."""
    try:
        data = scan_path(reg, file).read_bytes()
    except FileNotFoundError:
        return None
    digest, rest = data[:_HASH], data[_HASH:]
    if len(rest) < _NOTE.size or tensor_id(rest) != digest:
        return None
    (n_note,) = _NOTE.unpack_from(rest)
    note = rest[_NOTE.size : _NOTE.size + n_note].decode()
    recipe_bytes = rest[_NOTE.size + n_note :]
    try:
        recipe = Recipe.from_bytes(recipe_bytes)
    except CodecError:
        return None  # written by another release
    return Scan(recipe, recipe_bytes, note or None)


def forget(reg: Registry, file: File) -> None:
    scan_path(reg, file).unlink(missing_ok=True)


def _scan(
    reg: Registry, file: File, path: str, landed: LandingReader, progress: Callable[[int], None]
) -> Scan:
    plan = plan_file(landed.read_at, file.size, path, _limits(reg))
    try:
        return _hash(reg, file, plan, landed, progress)
    except InvalidInput as exc:
        # The file parses but exceeds what a recipe can describe: it is stored as an opaque file.
        opaque = plan_file(landed.read_at, file.size, "")
        found = _hash(reg, file, opaque, landed, progress)
        return Scan(found.recipe, found.recipe_bytes, str(exc))


def _hash(
    reg: Registry,
    file: File,
    plan: FilePlan,
    landed: LandingReader,
    progress: Callable[[int], None],
) -> Scan:
    ids = []
    buffer = memoryview(bytearray(min(READ_BYTES, file.size)))
    for piece in plan.tensor_pieces():
        is_large = piece.size >= LARGE_BYTES
        digest = blake3(max_threads=blake3.AUTO if is_large else 1)
        for start in range(piece.start, piece.end, READ_BYTES):
            part = buffer[: min(READ_BYTES, piece.end - start)]
            landed.read_into(start, part)
            digest.update(part)
            progress(part.nbytes)
        ids.append(digest.digest())
    recipe = make_recipe(plan, bytes.fromhex(file.sha256), ids, landed.read_at)
    return Scan(recipe, recipe.to_bytes(), plan.note)


def _keep(path: Path, found: Scan) -> None:
    note = (found.note or "").encode("utf-8", "replace")
    rest = _NOTE.pack(len(note)) + note + found.recipe_bytes
    with translated_store_errors(), translated(path.name):
        temporary = path.with_suffix(".new")
        temporary.write_bytes(tensor_id(rest) + rest)
        temporary.replace(path)


def _limits(reg: Registry) -> HeaderLimits:
    """The settings' limits, but never above the format's, by which the client splits files."""
    return HeaderLimits(
        min(reg.settings.max_header_bytes, DEFAULT_LIMITS.max_header_bytes),
        min(reg.settings.max_tensors, DEFAULT_LIMITS.max_tensors),
    )

"""Which files of a revision tell about its model, found without loading its entries."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, func, or_, select

from deltahub.registry.db.expressions import by_code_point, contains, total
from deltahub.registry.db.models import Entry, File, Revision
from deltahub.registry.db.session import ReadSession

# A model with more files of weights than this has no number of parameters here.
MAX_SHARDS: Final = 2000
_SAFETENSORS: Final = ".safetensors"
_WHOLE: Final = ("model.safetensors", "adapter_model.safetensors")
_SHARD: Final = re.compile(r"(?P<stem>[^/]+)-\d{5}-of-\d{5}\.safetensors")


# Tags of file formats, and how the names of their files end.
_FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "safetensors": (_SAFETENSORS,),
    "gguf": (".gguf",),
    # Not every .bin: trainers write training_args.bin beside weights of another format.
    "pytorch": ("pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin"),
    "onnx": (".onnx",),
    "tf": ("tf_model.h5", "tf_model.h5.index.json"),
    "jax": ("flax_model.msgpack", "flax_model.msgpack.index.json"),
    "tflite": (".tflite",),
}


@dataclass(frozen=True)
class ModelFiles:
    """What the paths of a revision say. The same for ever, because a revision never changes.

    formats: tags of the formats of its files. weights: the paths of the files that hold the model's
    weights, each tensor once; empty without safetensors files at the root, or with more than
    MAX_SHARDS.
    """

    n_entries: int
    n_bytes: int
    formats: tuple[str, ...]
    weights: tuple[str, ...]


def find_model_files(session: ReadSession, revision: Revision) -> ModelFiles:
    """Look at the paths of a revision. The database reads n_entries of them, at most twice."""
    of_revision = Entry.revision_id == revision.id
    is_weights = _ends_with(_SAFETENSORS)
    counts = [func.count().filter(or_(*map(_ends_with, endings))) for endings in _FORMATS.values()]
    n_entries, n_bytes, *n_files = session.execute(
        select(func.count(), total(File.size), *counts)
        .select_from(Entry)
        .join(File, File.id == Entry.file_id)
        .where(of_revision)
    ).one()
    formats = tuple(name for name, n in zip(_FORMATS, n_files, strict=True) if n)
    at_root: list[str] = []
    if "safetensors" in formats:
        at_root = list(
            session.scalars(
                select(Entry.path)
                .where(of_revision, is_weights, ~contains(Entry.path, "/"))
                .order_by(by_code_point(Entry.path))
                .limit(MAX_SHARDS + 1)
            )
        )
    is_sound = len(at_root) <= MAX_SHARDS
    weights = tuple(weight_paths(at_root)) if is_sound else ()
    return ModelFiles(n_entries, n_bytes, formats, weights)


def weight_paths(at_root: Collection[str]) -> list[str]:
    """Return the safetensors files that hold the weights: one file, or its shards."""
    for whole in _WHOLE:
        if whole in at_root:
            return [whole]
    shards: dict[str, list[str]] = {}
    for path in at_root:
        match = _SHARD.fullmatch(path)
        if match is not None:
            shards.setdefault(match["stem"], []).append(path)
    stem = "model" if "model" in shards else min(shards, default=None)
    chosen = shards[stem] if stem is not None else sorted(at_root)[:1]
    return sorted(chosen)


def _ends_with(suffix: str) -> ColumnElement[bool]:
    # LIKE would not tell capital letters from small ones in SQLite.
    return func.substr(Entry.path, func.length(Entry.path) - len(suffix) + 1) == suffix

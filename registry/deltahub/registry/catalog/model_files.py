"""Which files of a revision tell about its model, found without loading its entries."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, func, select

from deltahub.registry.db.expressions import by_code_point, contains
from deltahub.registry.db.models import Entry, Revision
from deltahub.registry.db.session import ReadSession

# A model with more files of weights than this has no number of parameters here.
MAX_SHARDS: Final = 2000
_SAFETENSORS: Final = ".safetensors"
_WHOLE: Final = ("model.safetensors", "adapter_model.safetensors")
_SHARD: Final = re.compile(r"(?P<stem>[^/]+)-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True)
class ModelFiles:
    """What the paths of a revision say. The same for ever, because a revision never changes.

    weights: the paths of the files that hold the model's weights, each tensor once; empty without
    safetensors files at the root, or with more than MAX_SHARDS.
    """

    n_entries: int
    has_safetensors: bool
    has_gguf: bool
    weights: tuple[str, ...]


def find_model_files(session: ReadSession, revision: Revision) -> ModelFiles:
    """Look at the paths of a revision. The database reads n_entries of them, at most twice."""
    of_revision = Entry.revision_id == revision.id
    is_weights = _ends_with(_SAFETENSORS)
    n_entries, n_safetensors, n_gguf = session.execute(
        select(
            func.count(), func.count().filter(is_weights), func.count().filter(_ends_with(".gguf"))
        ).where(of_revision)
    ).one()
    at_root: list[str] = []
    if n_safetensors:
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
    return ModelFiles(n_entries, n_safetensors > 0, n_gguf > 0, weights)


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

"""Which files of a revision tell about its model, found without loading its entries."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select

from deltahub.registry.catalog.trees.read import Tree
from deltahub.registry.catalog.trees.sums import ROOT_WEIGHTS, formats_in, marks_of
from deltahub.registry.db.models import Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import TreeEntry

# A model with more files of weights than this has no number of parameters here.
MAX_SHARDS: Final = 2000
_WHOLE: Final = ("model.safetensors", "adapter_model.safetensors")
_SHARD: Final = re.compile(r"(?P<stem>[^/]+)-\d{5}-of-\d{5}\.safetensors")


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
    """Look at the sums of a revision's tree, and at the leaves with weights at the root."""
    tree = Tree(session, revision.tree_id)
    sums = tree.sums
    at_root: list[str] = []
    for leaf_ids in tree.leaf_ids(marks=ROOT_WEIGHTS):
        query = select(TreeEntry.path).where(TreeEntry.node_id.in_(leaf_ids))
        at_root += (path for path in session.scalars(query) if marks_of(path) & ROOT_WEIGHTS)
        if len(at_root) > MAX_SHARDS:
            break
    is_sound = len(at_root) <= MAX_SHARDS
    weights = tuple(weight_paths(at_root)) if is_sound else ()
    return ModelFiles(sums.n_files, sums.n_bytes, formats_in(sums.marks), weights)


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

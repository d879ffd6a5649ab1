"""Whether two models look like two versions of one: the same tensors, with similar values."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from deltahub.registry.catalog.weights import named_tensors, safetensors_files
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.lineage.model_sketch import ingested_tensors
from deltahub.registry.lineage.tensor_sketch import Sketchable, TensorSketch, choose, sketch
from deltahub.registry.registry import Registry

# About 1 for weights that were trained further, and about 0 for those that were trained anew.
MIN_COSINE: Final = 0.9
# Tensors of a model that is looked at: their recipes are read.
_MOST_TENSORS: Final = 20_000


@dataclass(frozen=True)
class Likeness:
    """cosine: the mean over the largest tensors, each by a sample of 64 of its elements."""

    cosine: float
    n_tensors: int

    @property
    def is_version(self) -> bool:
        return self.cosine >= MIN_COSINE


def likeness(reg: Registry, reader: FileReader, first: int, second: int) -> Likeness | None:
    """How alike two ingested revisions are; None unless their tensors have the same names and
    shapes, and some of their bytes differ.
    """
    one, other = (_Stored(reg, reader, revision_id) for revision_id in (first, second))
    if not one.tensors or one.shapes != other.shapes or one.contents == other.contents:
        return None
    cosines = []
    for tensor in choose(one.tensors.values()):
        pair = sketch(tensor), sketch(other.tensors[tensor.name])
        if pair[0] is not None and pair[1] is not None:
            cosines.append(_cosine(pair[0], pair[1]))
    return Likeness(sum(cosines) / len(cosines), len(cosines)) if cosines else None


class _Stored:
    """The tensors of one revision."""

    def __init__(self, reg: Registry, reader: FileReader, revision_id: int) -> None:
        with reg.db.read() as session:
            files = list(session.scalars(safetensors_files(revision_id)))
        self.tensors: dict[str, Sketchable] = {}
        self.contents: dict[str, bytes] = {}
        for file in files:
            if len(self.tensors) > _MOST_TENSORS:
                self.tensors = {}
                break
            self.tensors |= {each.name: each for each in ingested_tensors(reader, file)}
            self.contents |= {name: ref.tensor for name, ref in named_tensors(reader, file)}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: each.shape for name, each in self.tensors.items()}


def _cosine(first: TensorSketch, second: TensorSketch) -> float:
    x, y = (
        (each.positions.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        for each in (first, second)
    )
    scale = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / scale if np.isfinite(scale) and scale > 0 else 0.0


def is_base(repository: Repository, revision: Revision) -> bool:
    """Whether a model may be a base: it is not made from one, as far as its pusher says."""
    return repository.role in (None, "base") and revision.declared_base in (None, "none")

"""How much a comparison would read, known without reading any weights."""

from dataclasses import dataclass
from typing import Final

from deltahub.codecs.files.recipe import TensorRef
from deltahub.registry.access.caller import Caller
from deltahub.registry.catalog.weights import safetensors_files
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import LimitExceeded
from deltahub.registry.registry import Registry
from deltahub.registry.results.comparisons.pair import Pair, resolve_pair

# Bytes of both models in a second, of one core's work on matrices.
BYTES_PER_S: Final = 60e6


@dataclass(frozen=True)
class PairEstimate:
    """is_ready: all weights are ingested, so that a comparison can begin."""

    pair: Pair
    is_ready: bool
    n_tensors: int
    n_read: int
    read_bytes: int
    seconds: float


def estimate(
    reg: Registry, reader: FileReader, caller: Caller | None, first: str, second: str
) -> PairEstimate:
    """RepositoryNotFound, RevisionNotFound; LimitExceeded for more tensors than a report has."""
    with reg.db.read() as session:
        pair = resolve_pair(session, caller, first, second)
        sides = (pair.first.revision_id, pair.second.revision_id)
        files = [list(session.scalars(safetensors_files(row))) for row in sides]
    tensors = []
    for of_side in files:
        refs: dict[str, TensorRef] = {}
        for recipe in reader.load_recipes(of_side):
            refs |= {ref.name: ref for ref in recipe.tensors() if ref.name is not None}
            if len(refs) > reg.settings.max_report_tensors:
                raise LimitExceeded(
                    f"more than {reg.settings.max_report_tensors} tensors: the operator allows"
                    " more by DELTAHUB_MAX_REPORT_TENSORS"
                )
        tensors.append(refs)
    return count(pair, tensors[0], tensors[1])


def count(pair: Pair, first: dict[str, TensorRef], second: dict[str, TensorRef]) -> PairEstimate:
    """The estimate for tensors by name."""
    n_read = read_bytes = 0
    for name, ref in first.items():
        other = second.get(name)
        if other is None or other.shape != ref.shape or other.tensor == ref.tensor:
            continue
        n_read += 1
        read_bytes += ref.size + other.size
    n = len(first.keys() | second.keys())
    return PairEstimate(pair, pair.key is not None, n, n_read, read_bytes, read_bytes / BYTES_PER_S)

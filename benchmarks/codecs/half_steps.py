"""A merged adapter with fewer half steps: `python -m benchmarks.codecs.half_steps BASE TUNE RANK`.

BASE and TUNE are safetensors files in BF16, TUNE with an adapter of that rank merged and rounded
once. Prints the bytes of its matrices' frames over the adapter's, each of its elements counting
two, and how fast default effort makes them, as it does and with only the first half steps on all
words; at last with what the sketch says, and none.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from benchmarks.codecs.measure import cpu_s
from benchmarks.codecs.ours import Ours
from benchmarks.codecs.tensors import PairOfFiles, Tensor
from benchmarks.results_file import print_columns
from deltahub.codecs import low_rank_merge, low_rank_search
from deltahub.codecs.protocol import Effort

_RUNS = 3  # of which the fastest counts


@contextmanager
def _half_steps(n: int) -> Iterator[None]:
    """Those of default effort that look at all words, at most n."""
    ladder = low_rank_merge._LADDERS["default"]
    if n > 0:
        fewer = {"default": ladder._replace(all=ladder.all[: n - 1])}
        with patch.dict(low_rank_merge._LADDERS, fewer):
            yield
        return
    as_sketched = patch.object(
        low_rank_search,
        "sharpened",
        lambda pair, factors, effort: low_rank_merge.Merge(factors, is_rounded=False),
    )
    with as_sketched:
        yield


def _measured(tensors: list[Tensor]) -> tuple[int, float]:
    """(bytes of all frames, CPU seconds of making them)"""
    codec, size, spent = Ours(Effort.DEFAULT), 0, 0.0
    for tensor in tensors:
        runs = [cpu_s(partial(codec.encode, tensor)) for _ in range(_RUNS)]
        size += sum(map(len, runs[0][1]))
        spent += min(seconds for seconds, _ in runs)
    return size, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("fine_tune", type=Path)
    parser.add_argument("rank", type=int)
    arguments = parser.parse_args()
    tensors = [
        tensor
        for tensor in PairOfFiles.load(arguments.base, arguments.fine_tune).tensors
        if len(tensor.shape) == 2 and tensor.n_base and not tensor.is_unchanged
    ]
    if not tensors:
        parser.error("no matrix of the base was changed")
    adapter = sum(2 * arguments.rank * sum(tensor.shape) for tensor in tensors)
    n_bytes = sum(tensor.words.nbytes for tensor in tensors)
    most = 1 + len(low_rank_merge._LADDERS["default"].all)
    rows = []
    for n in range(most, -1, -1):
        with _half_steps(n):
            size, spent = _measured(tensors)
        rows.append([str(n), f"{size / adapter:.2f}", f"{n_bytes / spent / 1e6:.0f}"])
    print_columns(["half steps on all words", "times the adapter", "MB/s"], rows)


if __name__ == "__main__":
    main()

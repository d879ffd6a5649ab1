"""What a second core is worth: to the blocks of a frame, small or as large as they get, to tensors
side by side as in a push, and to a second process that shares nothing: all that the machine gives.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from benchmarks.codecs.figures import DECODE, ENCODE, Figure
from benchmarks.codecs.ours import Ours
from benchmarks.codecs.tensors import Tensor

ONE: Final = "one"
BLOCKS: Final = "blocks"
TENSORS: Final = "tensors"
PROCESSES: Final = "processes"
ONE_LARGE: Final = "one, large frames"
BLOCKS_LARGE: Final = "blocks, large frames"
# What each is compared with.
WAYS: Final = {BLOCKS: ONE, TENSORS: ONE, PROCESSES: ONE, BLOCKS_LARGE: ONE_LARGE}
# Times as many repetitions as are asked for: neighbours of the machine leave both of its cores
# alone for moments only. Decoding takes a fourth of the time.
_ENCODED: Final = 2
_DECODED: Final = 4


def wall_seconds(codec: Ours, tensors: Sequence[Tensor], repeats: int) -> dict[str, float]:
    """Of all tensors, by "encode one", "decode blocks"...: the fastest of the repetitions.

    Each of the two processes codes all of the tensors; the others share them.
    """
    outs = [np.ones_like(tensor.words) for tensor in tensors]
    best: dict[str, float] = {}
    encoded: list[list[bytes]] = []

    def keep(way: str, by: str, spent_s: float) -> None:
        best[f"{way} {by}"] = min(best.get(f"{way} {by}", float("inf")), spent_s)

    def encode(i: int, threads: int = 1) -> list[bytes]:
        return codec.encode(tensors[i], threads=threads)

    def decode(i: int, threads: int = 1) -> None:
        codec.decode(encoded[i], tensors[i].base, outs[i], threads=threads)

    every = range(len(tensors))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(time.sleep, [0.01, 0.01]))  # the threads are there
        for _ in range(_ENCODED * repeats):
            spent_s, encoded = _timed(lambda: [encode(i) for i in every])
            keep(ENCODE, ONE, spent_s)
            keep(ENCODE, BLOCKS, _timed(lambda: [encode(i, 2) for i in every])[0])
            keep(ENCODE, TENSORS, _timed(lambda: list(pool.map(encode, every)))[0])
        for _ in range(_DECODED * repeats):
            keep(DECODE, ONE, _timed(lambda: [decode(i) for i in every])[0])
            keep(DECODE, BLOCKS, _timed(lambda: [decode(i, 2) for i in every])[0])
            keep(DECODE, TENSORS, _timed(lambda: list(pool.map(decode, every)))[0])
    for way, by, spent_s in _large(codec, joined(tensors), repeats):
        keep(way, by, spent_s)
    for _ in range(_ENCODED * repeats):
        keep(ENCODE, PROCESSES, _with_a_twin(outs, lambda _: [encode(i) for i in every]))
        keep(
            DECODE,
            PROCESSES,
            _with_a_twin(outs, lambda own: _decode_into(codec, encoded, tensors, own)),
        )
    return best


def times_as_fast(wall_s: dict[str, float], way: str, by: str) -> float:
    """Two threads, or processes, against one."""
    work = 2 if by == PROCESSES else 1
    return work * wall_s[f"{way} {WAYS[by]}"] / wall_s[f"{way} {by}"]


def threads_figures(wall_s: dict[str, float]) -> list[Figure]:
    """Tensors side by side, and the blocks of a large frame; beside them what else two can do."""
    figures = []
    for way, by, what in (
        (ENCODE, TENSORS, "tensors side by side"),
        (DECODE, TENSORS, "tensors side by side"),
        (DECODE, BLOCKS_LARGE, "blocks of a large frame"),
    ):
        name = f"{way}: two threads against one, {what}"
        if not wall_s:
            figures.append(Figure(name, 1.8, None, True, "times"))
            continue
        times = {other: times_as_fast(wall_s, way, other) for other in WAYS}
        where = f"blocks of small frames {times[BLOCKS]:.2f}, two processes {times[PROCESSES]:.2f}"
        if way == ENCODE:
            where += f", blocks of a large frame {times[BLOCKS_LARGE]:.2f}"
        figures.append(Figure(name, 1.8, times[by], True, "times", where))
    return figures


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """The matrices of the commonest row length as one; it is cut into frames of 64 MiB."""
    matrices = [tensor for tensor in tensors if len(tensor.shape) == 2]
    widths = Counter[int]()
    for tensor in matrices:
        widths[tensor.shape[1]] += tensor.words.size
    ((width, size),) = widths.most_common(1)
    parts = [tensor for tensor in matrices if tensor.shape[1] == width]
    words, base = (
        np.concatenate([getattr(tensor, which) for tensor in parts]) for which in ("words", "base")
    )
    return Tensor("joined", parts[0].dtype, (size // width, width), words, base, size)


def _large(codec: Ours, tensor: Tensor, repeats: int) -> Iterator[tuple[str, str, float]]:
    out = np.ones_like(tensor.words)
    ways = ((1, ONE_LARGE), (2, BLOCKS_LARGE))
    frames: list[bytes] = []
    for _ in range(_ENCODED * repeats):
        for threads, by in ways:
            spent_s, frames = _timed(lambda n=threads: codec.encode(tensor, threads=n))
            yield ENCODE, by, spent_s
    for _ in range(_DECODED * repeats):
        for threads, by in ways:
            spent_s, _ = _timed(lambda n=threads: codec.decode(frames, tensor.base, out, n))
            yield DECODE, by, spent_s


def _decode_into(
    codec: Ours, encoded: list[list[bytes]], tensors: Sequence[Tensor], outs: list[Any]
) -> None:
    for frames, tensor, out in zip(encoded, tensors, outs, strict=True):
        codec.decode(frames, tensor.base, out)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def _with_a_twin(outs: list[Any], work: Callable[[list[Any]], Any]) -> float:
    """Seconds until this process and a copy of it have both done their work.

    Both write to pages of their own, which are there before the clock runs.
    """
    told, tell = os.pipe()
    ready, say_ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(tell)  # or the end of the other process would not be seen
            own = [np.ones_like(out) for out in outs]
            os.write(say_ready, b"!")
            if os.read(told, 1):
                work(own)
                status = 0
        finally:
            os._exit(status)
    os.close(told)
    os.close(say_ready)
    own = [np.ones_like(out) for out in outs]
    is_ready = os.read(ready, 1) != b""
    began = time.perf_counter()
    if is_ready:
        os.write(tell, b"!")
        work(own)
    _, status = os.waitpid(pid, 0)
    spent_s = time.perf_counter() - began
    os.close(tell)
    os.close(ready)
    if status != 0:
        raise ChildProcessError(f"the second process ended with status {status}")
    return spent_s

"""What a second core is worth: to the blocks of a frame, to tensors side by side as in a push, and
to a second process that shares nothing, which is what the machine can give at most.
"""

import os
import time
from collections.abc import Callable, Sequence
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
WAYS: Final = (ONE, BLOCKS, TENSORS, PROCESSES)
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
    return work * wall_s[f"{way} {ONE}"] / wall_s[f"{way} {by}"]


def threads_figures(wall_s: dict[str, float]) -> list[Figure]:
    """Tensors side by side, and beside them what else two can do."""
    figures = []
    for way in (ENCODE, DECODE):
        name = f"{way}: two threads against one, tensors side by side"
        if not wall_s:
            figures.append(Figure(name, 1.8, None, True, "times"))
            continue
        times = {by: times_as_fast(wall_s, way, by) for by in WAYS}
        where = f"blocks of a frame {times[BLOCKS]:.2f}, two processes {times[PROCESSES]:.2f}"
        figures.append(Figure(name, 1.8, times[TENSORS], True, "times", where))
    return figures


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

"""One codec on one pair, in a process of its own, pinned to one core; prints JSON.

A rival that corrupts its input or crashes then spoils nobody else's figures.
"""

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.codecs.ours import OURS, STANDALONE, NotLossless, Ours, Stored
from benchmarks.codecs.tensors import FLOATS, PairOfFiles, Tensor
from benchmarks.codecs.threads import wall_seconds
from benchmarks.rivals.all import BY_NAME
from benchmarks.rivals.rival import Rival

BUFFER_BYTES = 256 << 20
REPEATS = 7
_TIMEOUT_S = 3600
_LENGTH_BYTES = 4  # a rival's container names the length of each stream
_OURS = {codec.name: codec for codec in (*OURS, STANDALONE)}


class Failed(Exception):
    """The codec crashed, or did not give the tensors back."""


def measure(
    what: str, codec: str, files: tuple[Path, Path], *, kernels: str = "", **options: int
) -> dict[str, Any]:
    """Runs main() elsewhere; what it printed. files: (base, fine-tune). Failed with its last line.

    what: size, speed, threads or memory. kernels: which of ours; empty for the fastest.
    """
    command = [sys.executable, "-m", "benchmarks.codecs.measure", what, codec, *map(str, files)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    environment = {**os.environ, **({"DELTAHUB_KERNELS": kernels} if kernels else {})}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise Failed(f"exit status {done.returncode}: {last}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def codec_named(name: str) -> "Ours | _Tensorwise":
    return _OURS[name] if name in _OURS else _Tensorwise(BY_NAME[name])


class _Tensorwise:
    """A rival behind the calls that ours has. What is no float goes to zstd, for every rival."""

    def __init__(self, rival: Rival) -> None:
        self.rival = rival

    def encode(self, tensor: Tensor) -> list[bytes]:
        if tensor.dtype not in FLOATS:
            return [BY_NAME["zstd-3"].encode(tensor.words, tensor.base, tensor.dtype)]
        return [self.rival.encode(tensor.words, tensor.base, tensor.dtype)]

    def decode(self, encoded: list[bytes], tensor: Tensor, out: Any) -> None:
        rival = self.rival if tensor.dtype in FLOATS else BY_NAME["zstd-3"]
        rival.decode(encoded[0], tensor.base, tensor.dtype, out)

    def stored(self, pair: PairOfFiles) -> Stored:
        """Header, streams and their lengths; a store keeps a tensor that is the base's by name."""
        size = pair.header_bytes
        for tensor in pair.tensors:
            if tensor.is_unchanged and self.rival.takes_base:
                continue
            encoded = self.encode(tensor)
            out = np.ones_like(tensor.words)
            self.decode(encoded, tensor, out)
            if not np.array_equal(out, tensor.words):
                raise NotLossless(f"{self.rival.name} changed {tensor.name}")
            size += sum(len(stream) + _LENGTH_BYTES for stream in encoded)
        return Stored(size)


def decode_tensor(
    codec: "Ours | _Tensorwise", encoded: list[bytes], tensor: Tensor, out: Any
) -> None:
    if isinstance(codec, Ours):
        codec.decode(encoded, tensor.base, out)
    else:
        codec.decode(encoded, tensor, out)


def cpu_s(work: Callable[[], Any]) -> tuple[float, Any]:
    """User and system seconds of this process, and the result."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, result


def _size(codec: "Ours | _Tensorwise", pair: PairOfFiles) -> dict[str, Any]:
    stored = codec.stored(pair)
    return {
        "file_bytes": pair.file_bytes,
        "stored_bytes": stored.size_bytes,
        "worst_excess_bytes": stored.worst_excess,
    }


def _speed(
    codec: "Ours | _Tensorwise", pair: PairOfFiles, buffer_bytes: int, repeats: int
) -> dict[str, Any]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    _keep_memory()
    tensors = pair.buffers(buffer_bytes)
    outs = [np.ones_like(tensor.words) for tensor in tensors]
    encode_s: list[float] = []
    decode_s: list[float] = []
    encoded: list[list[bytes]] = []
    for repetition in range(repeats + 1):
        encoded.clear()  # what comes next lies where it lay
        spent_s, encoded = cpu_s(lambda: [codec.encode(tensor) for tensor in tensors])
        for out in outs:
            out.fill(1)

        def decode(streams: list[list[bytes]] = encoded) -> None:
            for stream, tensor, out in zip(streams, tensors, outs, strict=True):
                decode_tensor(codec, stream, tensor, out)

        back_s, _ = cpu_s(decode)
        for tensor, out in zip(tensors, outs, strict=True):
            if not np.array_equal(out, tensor.words):
                raise NotLossless(f"{tensor.name} came back changed")
        if repetition > 0:  # the first one pays for imports and for fresh pages
            encode_s.append(spent_s)
            decode_s.append(back_s)
    n_bytes = sum(tensor.words.nbytes for tensor in tensors)
    return {"bytes": n_bytes, "encode_cpu_s": encode_s, "decode_cpu_s": decode_s}


def _keep_memory() -> None:
    """Let what is freed stay with this process, as outputs that decoding writes into do.

    glibc gives memory back that one repetition's streams took: the next one would fetch all of it
    from the system again, page by page, which takes a twelfth of the fastest encoders' time and
    is no codec's work. Who encodes tensors one by one does not pay for it, either.
    """
    libc = ctypes.CDLL(None)
    trim_threshold, mmap_max = -1, -4  # of mallopt's parameters, from malloc.h
    if not (libc.mallopt(trim_threshold, 2**31 - 1) and libc.mallopt(mmap_max, 0)):
        raise RuntimeError("mallopt refuses to keep memory: speeds need glibc")


def _memory(codec: Ours, pair: PairOfFiles) -> dict[str, Any]:
    """Bytes by which resident memory rises above what is held before and the output, coding once.

    Of the largest tensor. Nothing is coded before that, so what is kept for the next one counts.
    """
    tensor = max(pair.tensors, key=lambda tensor: tensor.words.nbytes)
    rise, frames = _rise_bytes(lambda: codec.encode(tensor))
    encode_bytes = rise - sum(map(len, frames))
    out = np.ones_like(tensor.words)
    decode_bytes, _ = _rise_bytes(lambda: codec.decode(frames, tensor.base, out))
    return {
        "tensor_bytes": tensor.words.nbytes,
        "encode_bytes": encode_bytes,
        "decode_bytes": decode_bytes,
    }


def _rise_bytes(work: Callable[[], Any]) -> tuple[int, Any]:
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before would be taken again, unseen
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    result = work()
    return _status_bytes("VmHWM") - before, result


def _status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {key}")


def _have_one_thread() -> None:
    """Begin anew, where need be: threads of linear algebra would share the core, and be counted."""
    setting = "OPENBLAS_NUM_THREADS"
    if os.environ.get(setting) != "1":
        command = [sys.executable, "-m", "benchmarks.codecs.measure", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, setting: "1"})


def main() -> None:
    _have_one_thread()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["size", "speed", "threads", "memory"])
    parser.add_argument("codec", choices=sorted([*_OURS, *BY_NAME]))
    parser.add_argument("base", type=Path)
    parser.add_argument("fine_tune", type=Path)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--buffer-bytes", type=int, default=BUFFER_BYTES)
    a = parser.parse_args()
    codec, pair = codec_named(a.codec), PairOfFiles.load(a.base, a.fine_tune)
    if a.what == "size":
        found = _size(codec, pair)
    elif a.what == "speed":
        found = _speed(codec, pair, a.buffer_bytes, a.repeats)
    elif not isinstance(codec, Ours):
        parser.error(f"{a.what} is only asked of our own codec")
    elif a.what == "threads":
        found = {"wall_s": wall_seconds(codec, pair.buffers(a.buffer_bytes), a.repeats)}
    else:
        found = _memory(codec, pair)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

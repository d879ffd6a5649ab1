"""One contender on one pair, in a process of its own, pinned to one core; prints JSON.

A contender that corrupts its input or crashes then spoils nobody else's figures.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.codec_sizes.contenders.all import BY_NAME
from benchmarks.codec_sizes.model_file import ModelFile

REPEATS = 5
_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Figures:
    """CPU seconds are user + system of the whole process, one value a repetition."""

    file_bytes: int
    encoded_bytes: int
    encode_cpu_s: list[float]
    decode_cpu_s: list[float]

    @property
    def size_percent(self) -> float:
        return 100 * self.encoded_bytes / self.file_bytes

    def mb_per_s(self, times_s: list[float]) -> tuple[float, float, float]:
        """(median, slowest, fastest): 10^6 bytes of the file a CPU second."""
        speeds = [self.file_bytes / 1e6 / max(time_s, 1e-9) for time_s in times_s]
        return median(speeds), min(speeds), max(speeds)


class ContenderFailed(Exception):
    """It crashed or did not give the file back."""


def measure(name: str, fine_tune: Path, base: Path, repeats: int = REPEATS) -> Figures:
    """Runs the contender elsewhere. ContenderFailed with what it said."""
    command = [sys.executable, "-m", "benchmarks.codec_sizes.measure", name]
    command += [str(fine_tune), str(base), "--repeats", str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise ContenderFailed(f"exit status {done.returncode}: {last}")
    return Figures(**json.loads(done.stdout.splitlines()[-1]))


def _cpu_s(work: Callable[[], Any]) -> tuple[float, Any]:
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, result


def _measure_here(name: str, fine_tune_path: Path, base_path: Path, repeats: int) -> Figures:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    contender = BY_NAME[name]
    fine_tune, base = ModelFile.load(fine_tune_path), ModelFile.load(base_path)
    reference = fine_tune_path.read_bytes()
    encode_s: list[float] = []
    decode_s: list[float] = []
    size = 0
    for repetition in range(repeats + 1):
        time_encode_s, encoded = _cpu_s(lambda: contender.encode(fine_tune, base))
        time_decode_s, decoded = _cpu_s(lambda e=encoded: contender.decode(e, base))
        if bytes(decoded) != reference:
            raise ContenderFailed("it did not give the file back bit for bit")
        size = encoded.size
        if repetition > 0:  # the first one pays for imports and cold pages
            encode_s.append(time_encode_s)
            decode_s.append(time_decode_s)
    return Figures(len(reference), size, encode_s, decode_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contender", choices=sorted(BY_NAME))
    parser.add_argument("fine_tune", type=Path)
    parser.add_argument("base", type=Path)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    a = parser.parse_args()
    print(json.dumps(asdict(_measure_here(a.contender, a.fine_tune, a.base, a.repeats))))


if __name__ == "__main__":
    main()

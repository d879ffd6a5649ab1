"""How many instructions a word one codec takes on a small cut of a pair, by kind of work, counted
by callgrind:
`python -m benchmarks.codecs.profiling.instructions decode "deltahub fast" BASE FINE_TUNE`.

The kernels are those of AVX2, since valgrind's processor has no AVX-512. Exact where times are
not, and the same on every machine: what its neighbours do is not in it, nor is any waiting.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.codecs.figures import DECODE, ENCODE
from benchmarks.codecs.measure import codec_named, decode_tensor
from benchmarks.codecs.profiling.shares import print_shares
from benchmarks.codecs.tensors import FLOATS, PairOfFiles, Tensor

KERNELS: Final = "avx2"
_LARGEST_WORDS: Final = 2_000_000  # of a tensor that is looked at; valgrind is slow
_NAME: Final = re.compile(r"(c?)(ob|fn)=(\(\d+\))(?: (.*))?$")
_COST: Final = re.compile(r"(?:[+-]?\d+|\*) (\d+)$")


def cut_of(pair: PairOfFiles, n_tensors: int) -> list[Tensor]:
    """The first changed matrices of floats that are not too large."""
    found = [
        tensor
        for tensor in pair.tensors
        if tensor.dtype in FLOATS
        and len(tensor.shape) == 2
        and tensor.words.size <= _LARGEST_WORDS
        and not tensor.is_unchanged
    ]
    if not found:
        raise SystemExit("no changed matrix of floats is small enough")
    return found[:n_tensors]


def _work(way: str, codec_name: str, files: tuple[Path, Path], n_tensors: int, times: int) -> None:
    """Codes the cut so often, and says how many words that were in one go."""
    codec = codec_named(codec_name)
    tensors = cut_of(PairOfFiles.load(*files), n_tensors)
    encoded = [codec.encode(tensor) for tensor in tensors] if way == DECODE else []
    outs = [np.ones_like(tensor.words) for tensor in tensors]
    for _ in range(times):
        for at, tensor in enumerate(tensors):
            if way == ENCODE:
                codec.encode(tensor)
            else:
                decode_tensor(codec, encoded[at], tensor, outs[at])
    print(sum(tensor.words.size for tensor in tensors))


def functions_in(profile: str) -> dict[str, int]:
    """Instructions by library and function, without those that they call, of callgrind's file."""
    names: dict[str, str] = {}
    found: dict[str, int] = {}
    library = function = ""
    is_of_callee = False
    for line in profile.splitlines():
        if name := _NAME.match(line):
            # A number stands for a name from its first mention on.
            full = names.setdefault(name[2] + name[3], name[4])
            if not name[1] and name[2] == "ob":
                library = Path(full).name
            elif not name[1]:
                function = full
        elif line.startswith("calls="):
            is_of_callee = True
        elif cost := _COST.match(line):
            if not is_of_callee:
                key = f"{library} {function}"
                found[key] = found.get(key, 0) + int(cost[1])
            is_of_callee = False
    return found


def _counted(command: list[str], times: int) -> tuple[dict[str, int], int]:
    """Instructions by function of a process that codes the cut so often, and the cut's words."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "callgrind.out"
        counting = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", "-q"]
        try:
            done = subprocess.run(
                [*counting, *command, "--work", str(times)],
                capture_output=True, text=True,
                env={**os.environ, "DELTAHUB_KERNELS": KERNELS, "OPENBLAS_NUM_THREADS": "1",
                     "PYTHONHASHSEED": "0"},
            )  # fmt: skip
        except FileNotFoundError:
            raise SystemExit("valgrind is not here: install valgrind") from None
        if done.returncode != 0:
            raise SystemExit(f"valgrind: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
        return functions_in(profile.read_text()), int(done.stdout)


def instructions(
    way: str, codec: str, files: tuple[Path, Path], n_tensors: int
) -> tuple[dict[str, float], int]:
    """Instructions a word by library and function, and the words of the cut.

    What three goes take beyond two: imports, files and what Python learns at first are in both.
    """
    command = [sys.executable, "-m", "benchmarks.codecs.profiling.instructions", way, codec]
    command += [*map(str, files), "--tensors", str(n_tensors)]
    (some, n_words), (more, _) = _counted(command, 2), _counted(command, 3)
    found = {name: (n - some.get(name, 0)) / n_words for name, n in more.items()}
    return {name: n for name, n in found.items() if n != 0}, n_words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=[ENCODE, DECODE])
    parser.add_argument("codec", help='such as "deltahub fast"')
    parser.add_argument("base", type=Path)
    parser.add_argument("fine_tune", type=Path)
    parser.add_argument("--tensors", type=int, default=3, help="how many matrices to cut out")
    parser.add_argument("--functions", action="store_true", help="each function, with its kind")
    parser.add_argument("--work", type=int, default=0, help=argparse.SUPPRESS)
    a = parser.parse_args()
    files = (a.base, a.fine_tune)
    if a.work:
        _work(a.way, a.codec, files, a.tensors, a.work)
        return
    found, n_words = instructions(a.way, a.codec, files, a.tensors)
    print_shares(found, f"all, of {n_words} words", "instructions a word", a.functions)


if __name__ == "__main__":
    main()

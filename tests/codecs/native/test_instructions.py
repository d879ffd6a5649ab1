"""Instructions of the kernels, as callgrind counts them for the benchmarks."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.codecs.profiling.instructions import instructions
from benchmarks.codecs.profiling.shares import by_kind


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_valgrind_counts_what_the_kernels_of_avx2_take(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    words = (random.standard_normal((64, 128)) * 0.02).astype(np.float32).view(np.uint32)
    files = tmp_path / "base.safetensors", tmp_path / "fine_tune.safetensors"
    for path, moves in zip(files, (0, 1 << 16), strict=True):
        data = ((words + moves) >> 16).astype(np.uint16).tobytes()
        tensor = {"dtype": "BF16", "shape": words.shape, "data_offsets": [0, len(data)]}
        header = json.dumps({"a": tensor}).encode()
        header += b" " * (-len(header) % 8)
        path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    found, n_words = instructions("decode", "deltahub fast", files, 1)
    assert n_words == words.size
    kinds = by_kind(found)
    assert 2 < kinds["symbols: states and bits"] < 40
    assert 0 < kinds["differences and words"] < 5
    assert kinds.get("other", 0) < 2

"""The search for low rank takes little memory beside its frame, for every shape of frame."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS
from deltahub.codecs.fm_delta.low_rank.search import find_product
from deltahub.codecs.protocol import Effort
from support.codecs.deltas import as_words

# Prints the rise of resident memory in MiB, and the rank of the product that was found. The words
# are those of a layer before and after an adapter was merged into it.
SEARCH = """
import sys
import numpy as np
from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.search import find_product
from deltahub.codecs.protocol import Effort
from support.codecs.codec_memory import rise_bytes
from support.codecs.deltas import as_words

dtype, effort = DType[sys.argv[1]], Effort[sys.argv[2]]
rows, columns, rank = (int(each) for each in sys.argv[3:])
random = np.random.default_rng(0)
base = as_words(random.standard_normal((rows, columns), np.float32) * np.float32(0.02), dtype)
left = random.standard_normal((rows, rank), np.float32) * np.float32(1e-3)
product = left @ random.standard_normal((rank, columns), np.float32)
if dtype is DType.BF16:
    wide = (base.astype(np.uint32) << 16).view(np.float32)
else:
    wide = base.view(f"<f{dtype.itemsize}").astype(np.float32)
tuned = as_words(wide + product, dtype)
del left, product, wide
ranks = []
rise = rise_bytes(
    lambda: ranks.append(find_product(dtype, tuned, base, rows, columns, effort).low_rank.rank)
)
print(rise / (1 << 20), *ranks)
"""


@pytest.mark.parametrize("dtype", list(FLOAT_WORDS), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("effort", ["DEFAULT", "MAX"])
@pytest.mark.parametrize(
    ("rows", "columns", "rank", "most_mib"),
    [
        (2048, 2048, 30, 32),
        (64, 50_000, 2, 128),
        (64, 1 << 16, 2, 160),
        (1 << 16, 64, 2, 160),
        (1 << 17, 64, 2, 160),
    ],
    ids=str,
)
def test_the_search_takes_little_beside_its_frame(
    rows: int, columns: int, rank: int, most_mib: int, effort: str, dtype: DType
) -> None:
    if dtype is DType.F32 and max(rows, columns) > 1 << 16:
        pytest.skip("the search leaves out F32 frames of so many rows: see the test below")
    arguments = [dtype.name, effort, *(str(each) for each in (rows, columns, rank))]
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    rise, found = done.stdout.split()
    # A component of F32 words takes three, because its factors have more than 16 bits.
    assert int(found) == rank if dtype is not DType.F32 else int(found) >= min(rank, 21)
    assert float(rise) < most_mib  # limits of codecs/spec/fm_delta.md, except the first


@pytest.mark.parametrize("effort", [Effort.DEFAULT, Effort.MAX])
@pytest.mark.parametrize(
    ("dtype", "rows", "columns"),
    [
        (DType.BF16, 64, (1 << 16) + 1),
        (DType.F16, 64, (1 << 16) + 1),
        (DType.F32, 64, (1 << 16) + 1),
        (DType.F32, (1 << 16) + 1, 64),
    ],
    ids=str,
)
def test_larger_frames_are_encoded_without_a_product(
    dtype: DType, rows: int, columns: int, effort: Effort
) -> None:
    random = np.random.default_rng(0)
    floats = random.standard_normal((rows, columns), np.float32) * np.float32(0.02)
    product = np.outer(random.standard_normal(rows), random.standard_normal(columns))
    base = as_words(floats, dtype)
    tuned = as_words(floats + (product * 3e-3).astype(np.float32), dtype)
    fewer_rows, fewer_columns = min(rows, 1 << 16), min(columns, 1 << 16)
    parts = [words.reshape(rows, columns)[:fewer_rows, :fewer_columns] for words in (tuned, base)]
    smaller = [np.ascontiguousarray(words).reshape(-1) for words in parts]
    assert find_product(dtype, *smaller, fewer_rows, fewer_columns, effort) is not None
    assert find_product(dtype, tuned, base, rows, columns, effort) is None

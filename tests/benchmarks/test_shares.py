"""What functions are counted as, and instructions that callgrind counts."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.codecs.profiling.instructions import functions_in, instructions
from benchmarks.codecs.profiling.shares import by_kind, kind_of

KERNELS = "_native.so  [.] void deltahub::avx2::(anonymous namespace)::"
BF16 = "<deltahub::avx2::FloatWords<unsigned short, 8> >(unsigned char const*, unsigned long)"


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (f"{KERNELS}predict{BF16}", "prediction: product and sum"),
        (f"{KERNELS}predict_group{BF16}", "prediction: product and sum"),
        (f"{KERNELS}predict_group_general{BF16}", "prediction: product and sum"),
        (f"{KERNELS}decode_two_streams<unsigned short>(int)", "symbols: states and bits"),
        (f"{KERNELS}join{BF16}", "standalone: words"),
        (f"{KERNELS}bins{BF16}", "planning"),
        (f"{KERNELS}weighted_residuals_as<float>(int)", "search: estimates and differences"),
        (f"{KERNELS}apply{BF16}", "differences and words"),
        ("_native.so  [.] deltahub::count_leading_bits(unsigned char const*)", "planning"),
        ("_native.so  [.] deltahub::Sample::best_offset(int)", "planning"),
        ("_native.so  [.] deltahub::normalized(std::vector<unsigned> const&)", "tables"),
        (
            "_native.so  [.] deltahub::ResidualEntropy<float>::bits(int)",
            "search: estimates and differences",
        ),
        ("_native.so  [.] bits_of(nanobind::ndarray<>)", "Python around the blocks"),
        ("libpython3.11.so.1.0  [.] sre_search", "Python around the blocks"),
        ("somewhere.so  [.] elsewhere", "other"),
    ],
)
def test_each_function_has_its_kind_of_work(function: str, kind: str) -> None:
    assert kind_of(function) == kind


PROFILE = """\
version: 1
events: Ir

ob=(1) /usr/lib/libc.so.6
fl=(1) ???
fn=(1) memset
0 5
+3 7
cob=(2) /some/where/_native.so
cfi=(2) kernels.cpp
cfn=(2) deltahub::predict<int>(int)
calls=2 10
* 900

ob=(2)
fl=(2)
fn=(2)
10 400
fi=(3) words.hpp
-2 50
fn=(1)
11 1
"""


def test_instructions_are_of_the_functions_themselves() -> None:
    found = functions_in(PROFILE)
    assert found == {
        "libc.so.6 memset": 12,
        "_native.so deltahub::predict<int>(int)": 450,
        "_native.so memset": 1,
    }
    assert by_kind({name: float(n) for name, n in found.items()}) == {
        "memory: moved, filled, allocated": 12,
        "prediction: product and sum": 450,
        "other": 1,
    }


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


def test_where_valgrind_is_missing_the_message_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="valgrind is not here"):
        instructions("decode", "deltahub fast", (tmp_path, tmp_path), 1)

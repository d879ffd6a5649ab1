"""What functions are counted as, in what callgrind wrote."""

from pathlib import Path

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


def test_where_valgrind_is_missing_the_message_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="valgrind is not here"):
        instructions("decode", "deltahub fast", (tmp_path, tmp_path), 1)

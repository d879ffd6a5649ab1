"""Patterns of modules match as in PEFT, and hostile ones do not take forever."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft.utils.other import get_pattern_key

from deltahub.methods.adapters.patterns import values_of
from deltahub.methods.errors import BadAdapter

MODULES = [f"model.layers.{i}.self_attn.{name}" for i in (0, 1, 11) for name in ("q_proj", "k")]
PATTERNS = st.sampled_from(
    [
        "q_proj", "proj", "k", "layers.1.self_attn.k", r"model\.layers\.1\d?\..*", "^model.*k$",
        "q|k", r".*\.1\.self_attn\.(q_proj|k)", "model.layers.0", "[qk]", "", "layers.*_proj",
    ]
)  # fmt: skip


@given(st.lists(PATTERNS, unique=True))
def test_the_first_pattern_that_matches_counts_as_in_peft(patterns: list[str]) -> None:
    numbered = {pattern: i for i, pattern in enumerate(patterns)}
    expected = {name: numbered.get(get_pattern_key(patterns, name), -1) for name in MODULES}
    assert values_of(numbered, -1, MODULES, "rank_pattern") == expected


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b", "(a|a)*b", ".*.*.*.*.*.*.*b", r"(\w)\1", "x" * 2000, "(" * 200, "a{9}{9}",
        "a?" * 30 + "a" * 30, "(a|a)" * 40 + "b", "[a]*" * 9 + "b", "(?:a?){30}b",
    ],
)  # fmt: skip
def test_a_hostile_pattern_is_refused_at_once(pattern: str) -> None:
    began = time.monotonic()
    with pytest.raises(BadAdapter, match="alpha_pattern"):
        values_of({pattern: 1.0}, 2.0, ["a" * 200] * 100, "alpha_pattern")
    assert time.monotonic() - began < 2


def test_expressions_as_people_write_them_are_no_hostile_ones() -> None:
    modules = [
        f"model.layers.{i}.{name}_proj"
        for i in range(80)
        for name in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.up")
    ]
    patterns = {rf".*\.layers\.{i}\..*(q_proj|k_proj|v_proj|o_proj)$": i for i in range(60)}
    found = values_of(patterns, -1, modules, "rank_pattern")
    assert found["model.layers.7.self_attn.v_proj"] == 7
    assert found["model.layers.7.mlp.up_proj"] == found["model.layers.79.self_attn.q_proj"] == -1
    names = {module: i for i, module in enumerate(modules)}
    assert values_of(names, -1, modules, "rank_pattern") == names

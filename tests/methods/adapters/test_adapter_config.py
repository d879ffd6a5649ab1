"""What is read of an adapter_config.json, and that a wrong one is refused with a sentence."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltahub.methods.adapters.inspection.config import AdapterConfig, parse_adapter_config
from deltahub.methods.errors import BadAdapter

LORA = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
FIELDS = [
    "peft_type", "base_model_name_or_path", "revision", "r", "lora_alpha", "rank_pattern",
    "alpha_pattern", "use_rslora", "use_dora", "target_modules", "modules_to_save", "bias",
    "fan_in_fan_out", "init_lora_weights", "layers_to_transform", "target_parameters",
    "trainable_token_indices", "alora_invocation_tokens", "layer_replication", "lora_bias",
    "use_qalora", "exclude_modules", "deltahub_kit", "kasa_config",
]  # fmt: skip
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from([0, -1, 2**70, float("nan"), float("inf"), "LORA", "pissa", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)  # fmt: skip


def parsed(**changes: Any) -> AdapterConfig:
    return parse_adapter_config(json.dumps({**LORA, **changes}).encode(), "org/adapter")


def refusal_of(data: bytes) -> str:
    """Why the file is refused; empty if it is read."""
    try:
        config = parse_adapter_config(data, "org/adapter")
    except BadAdapter as error:
        return str(error)
    assert config.r >= 1
    return ""


def test_all_that_peft_writes_is_read() -> None:
    config = parsed(
        base_model_name_or_path="org/base", revision="main", rank_pattern={"q": 4},
        alpha_pattern={"q": 32}, use_rslora=True, modules_to_save=["lm_head"], bias="all",
        init_lora_weights="PiSSA_niter_4", layers_to_transform=1, layer_replication=[[0, 2]],
        trainable_token_indices=[3, 4], alora_invocation_tokens=[7], exclude_modules="lm_head",
        deltahub_kit="org/kit@0123abc", kasa_config={"beta": 1},
    )  # fmt: skip
    assert (config.r, config.lora_alpha) == (8, 16.0)
    assert (config.rank_pattern, config.alpha_pattern) == ({"q": 4}, {"q": 32.0})
    assert (config.target_modules, config.exclude_modules) == (("q_proj",), "lm_head")
    assert (config.modules_to_save, config.bias) == (("lm_head",), "all")
    assert config.init == "pissa_niter_4"
    assert (config.layers_to_transform, config.layer_replication) == ((1,), ((0, 2),))
    assert config.trainable_token_indices == {"embed_tokens": (3, 4)}
    assert (config.alora_invocation_tokens, config.variants) == ((7,), ("kasa_config",))
    assert config.deltahub_kit == "org/kit@0123abc"
    assert config.raw["revision"] == "main"


def test_what_is_missing_has_the_defaults_of_peft() -> None:
    config = parse_adapter_config(b'{"peft_type": "LORA", "modules_to_save": null}', "org/adapter")
    assert (config.r, config.lora_alpha, config.init) == (8, 8.0, "true")
    assert config.modules_to_save == ()
    assert parsed(init_lora_weights=None).init == parsed(init_lora_weights=False).init == "false"


def test_the_fields_of_other_types_mean_other_things() -> None:
    config = parse_adapter_config(b'{"peft_type": "IA3", "r": "no rank"}', "org/adapter")
    assert not config.is_lora


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"r": 0}, "r in .* is 0; it must be a whole number from 1 to 65,536"),
        ({"r": -4}, "r in .* is -4"),
        ({"r": True}, "r in .* is True"),
        ({"r": 10**9}, "r in .* is 1000000000"),
        ({"r": "8"}, "r in .* is '8'"),
        ({"lora_alpha": float("nan")}, "lora_alpha in .* is nan; .* a number other than 0"),
        ({"lora_alpha": 0}, "lora_alpha in .* is 0"),
        ({"lora_alpha": 10**400}, "lora_alpha in .* is 1000"),
        ({"rank_pattern": {"q": 0}}, "rank_pattern in .* is an object; .* for each pattern"),
        ({"alpha_pattern": ["q"]}, "alpha_pattern in .* is a list"),
        ({"modules_to_save": "lm_head"}, "modules_to_save in .* is 'lm_head'; .* a list"),
        ({"use_dora": "yes"}, "use_dora in .* is 'yes'; it must be true or false"),
        ({"bias": "some"}, r"bias in .* is 'some'; .* none\|all\|lora_only"),
        ({"init_lora_weights": 4}, "init_lora_weights in .* is 4"),
        ({"deltahub_kit": "kit"}, "deltahub_kit in .* is 'kit'"),
        ({"peft_type": None}, "peft_type in .* is None; .* such as LORA"),
        ({"layer_replication": [[1]]}, "layer_replication in .* is a list; .* pairs"),
        ({"bias": "a\x1b[2J\nb"}, r"is 'a\\x1b\[2J\\nb'"),
    ],
)
def test_a_wrong_value_is_named_with_its_limit_and_the_way_out(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadAdapter, match=sentence) as failure:
        parsed(**changes)
    assert str(failure.value).endswith("save the adapter again with PEFT, or correct the file")
    assert "of org/adapter" in str(failure.value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is no JSON"),
        (b"\xff\xfe\x00", "is no JSON"),
        (b"[1]", "a list, which is no JSON object"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'{"a":' * 100_000, "is nested too deeply"),
        (b'{"peft_type": "\\ud800"}', "is no JSON"),
        (b'{"r": ' + b"9" * 10_000 + b"}", "is no JSON"),
        (b" " * (5 << 20), "at most 4,194,304 are read"),
    ],
)
def test_what_is_no_json_object_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadAdapter, match=why):
        parse_adapter_config(data, "org/adapter")


@given(st.dictionaries(st.sampled_from(FIELDS), ODD))
def test_odd_values_are_read_or_refused(changes: dict[str, Any]) -> None:
    for values in ({**LORA, **changes}, changes):
        assert refusal_of(json.dumps(values).encode()).isprintable()


@given(st.binary(max_size=200), st.integers(0, 300))
@example(b"", 0)
def test_damaged_files_are_read_or_refused(junk: bytes, at: int) -> None:
    good = json.dumps(LORA).encode()
    for data in (junk, good[:at] + junk + good[at:], good[:at]):
        assert refusal_of(data).isprintable()

"""Whether adapters that PEFT saved fit their base, and that each fault is named."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltahub.methods.adapters.inspection.config import AdapterConfig, parse_adapter_config
from deltahub.methods.adapters.inspection.fit import Fit, TensorShape, check_fit
from deltahub.methods.errors import BadAdapter
from support.models.saved_adapters import OPTIONS, base_tensors, saved

LAYER = "base_model.model.model.layers.0"
Q = f"{LAYER}.self_attn.q_proj"
CONFIG = AdapterConfig("LORA", r=4, lora_alpha=8.0, target_modules=("q_proj",))


def f32(*shape: int) -> TensorShape:
    return TensorShape("F32", shape)


BASE = {
    "model.embed_tokens.weight": f32(32, 16),
    "model.layers.0.self_attn.q_proj.weight": f32(16, 16),
    "model.layers.0.self_attn.k_proj.weight": f32(8, 16),
    "model.layers.1.self_attn.q_proj.weight": f32(16, 16),
}
GOOD = {f"{Q}.lora_A.weight": f32(4, 16), f"{Q}.lora_B.weight": f32(16, 4)}


def fit_of(
    tensors: Mapping[str, TensorShape],
    config: AdapterConfig = CONFIG,
    base: Mapping[str, TensorShape] | None = BASE,
) -> Fit:
    return check_fit(config, tensors, base, "org/a", "org/base")


@pytest.fixture(scope="module")
def llama() -> dict[str, TensorShape]:
    return base_tensors()


@pytest.mark.parametrize("kind", OPTIONS)
def test_what_peft_saves_has_no_fault(kind: str, llama: dict[str, TensorShape]) -> None:
    config = parse_adapter_config(saved(kind).config, kind)
    fit = check_fit(config, saved(kind).tensors, llama, kind, "the base")
    assert fit.faults == ()
    assert fit.modules
    is_free = config.layer_replication is not None
    assert is_free or {module.target for module in fit.modules} <= set(llama)


def test_rank_and_scale_of_each_module_follow_the_patterns(llama: dict[str, TensorShape]) -> None:
    for kind, root in (("patterns", False), ("patterns with rslora", True)):
        config = parse_adapter_config(saved(kind).config, kind)
        fit = check_fit(config, saved(kind).tensors, llama, kind, "the base")
        of = {module.name.rpartition(".")[2]: module for module in fit.modules}
        assert (of["q_proj"].rank, of["q_proj"].alpha) == (2, 8)
        assert (of["v_proj"].rank, of["v_proj"].alpha) == (4, 16)
        assert of["q_proj"].scale == pytest.approx(8 / (math.sqrt(2) if root else 2))
        assert of["v_proj"].scale == pytest.approx(16 / (2 if root else 4))


@pytest.mark.parametrize(
    ("kind", "extras"),
    [
        ("true", {}),
        ("dora", {"DoRA magnitude": 4}),
        ("head", {"heads": 1}),
        ("biases", {"biases": 8}),
        ("bias of B", {"bias of B": 4}),
        ("embeddings", {"embeddings": 2, "copy of the base": 1}),
        ("token rows", {"token rows": 1}),
        ("kasa", {"other part of the adapter": 4}),
    ],
)
def test_what_lies_beside_the_factors_is_named(kind: str, extras: dict[str, int]) -> None:
    fit = check_fit(
        parse_adapter_config(saved(kind).config, kind), saved(kind).tensors, None, kind, ""
    )
    assert {name: len(tensors) for name, tensors in fit.extras.items()} == extras


def test_a_head_that_is_tied_to_the_embedding_is_compared_with_it() -> None:
    tensors = {
        f"base_model.model.lm_head.lora_{x}.weight": GOOD[f"{Q}.lora_{x}.weight"] for x in "AB"
    }
    tensors["base_model.model.lm_head.lora_B.weight"] = f32(32, 4)
    config = replace(CONFIG, target_modules=("lm_head",))
    (module,) = fit_of(tensors, config).modules
    assert module.target == "model.embed_tokens.weight"


def test_names_that_differ_in_their_beginning_are_found() -> None:
    names = ["language_model.model", "model.language_model", "model"]
    for ours in names:
        base = {f"{ours}.layers.0.self_attn.q_proj.weight": f32(16, 16)}
        base["vision_tower.layers.0.self_attn.q_proj.weight"] = f32(9, 9)
        for theirs in names:
            tensors = {name.replace("model.layers", f"{theirs}.layers", 1): shape
                       for name, shape in GOOD.items()}  # fmt: skip
            assert fit_of(tensors, base=base).faults == ()


def test_two_places_that_a_name_may_mean_are_a_note() -> None:
    base = {
        f"{part}.layers.0.self_attn.q_proj.weight": f32(16, 16) for part in ("encoder", "decoder")
    }
    fit = fit_of(GOOD, base=base)
    assert fit.faults == ()
    assert fit.notes == (
        "org/a was not compared with org/base for model.layers.0.self_attn.q_proj",
    )


FAULTS: dict[str, tuple[Mapping[str, TensorShape], AdapterConfig]] = {
    "org/a has a configuration and no weights: push them, too": ({}, CONFIG),
    "org/a has A without B for model.layers.0.self_attn.q_proj": (
        {f"{Q}.lora_A.weight": f32(4, 16)}, CONFIG),
    "org/a has B without A for model.layers.0.self_attn.q_proj": (
        {f"{Q}.lora_B.weight": f32(16, 4)}, CONFIG),
    "org/a has A and B that do not fit together ([4, 16] and [16, 5]) for"
    " model.layers.0.self_attn.q_proj": (GOOD | {f"{Q}.lora_B.weight": f32(16, 5)}, CONFIG),
    "org/a has A and B that do not fit together ([0, 16] and [16, 0]) for"
    " model.layers.0.self_attn.q_proj": (
        {f"{Q}.lora_A.weight": f32(0, 16), f"{Q}.lora_B.weight": f32(16, 0)}, CONFIG),
    "org/a has rank 4, where r says 8, for model.layers.0.self_attn.q_proj": (
        GOOD, replace(CONFIG, r=8)),
    "org/a has rank 4, where rank_pattern says 2, for model.layers.0.self_attn.q_proj": (
        GOOD, replace(CONFIG, rank_pattern={"q_proj": 2})),
    "org/a has A and B [4, 16] and [8, 4] that do not fit [16, 16] in org/base for"
    " model.layers.0.self_attn.q_proj": (GOOD | {f"{Q}.lora_B.weight": f32(8, 4)}, CONFIG),
    "org/a changes modules that org/base does not have: model.layers.0.self_attn.q_proj.more": (
        {name.replace("q_proj", "q_proj.more"): shape for name, shape in GOOD.items()},
        replace(CONFIG, target_modules=None)),
    "org/a has no weights, though target_modules names them, for"
    " model.layers.0.self_attn.k_proj.weight": (
        GOOD, replace(CONFIG, target_modules=("q_proj", "k_proj", "gate_proj"))),
    "org/a has no weights, though modules_to_save names them, for embed_tokens": (
        GOOD, replace(CONFIG, modules_to_save=("embed_tokens", "classifier"))),
    "org/a says use_dora and has no magnitudes for model.layers.0.self_attn.q_proj": (
        GOOD, replace(CONFIG, use_dora=True)),
    "org/a has magnitudes of DoRA without use_dora for model.layers.0.self_attn.q_proj": (
        GOOD | {f"{Q}.lora_magnitude_vector": f32(16)}, CONFIG),
    "org/a has no factors A and B: save it again with PEFT": (
        {"base_model.model.model.norm.weight": f32(16)}, CONFIG),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_a_sentence(fault: str) -> None:
    tensors, config = FAULTS[fault]
    assert fit_of(tensors, config).faults == (fault,)


def test_many_faults_of_a_kind_are_one_sentence() -> None:
    tensors = {name.replace(".0.", f".{i}."): shape
               for i in range(2, 9) for name, shape in GOOD.items()}  # fmt: skip
    (fault,) = fit_of(tensors).faults
    assert fault.endswith(
        "model.layers.2.self_attn.q_proj, model.layers.3.self_attn.q_proj,"
        " model.layers.4.self_attn.q_proj and 4 more"
    )


def test_a_resized_vocabulary_and_a_quantized_base_are_notes() -> None:
    embedding = "base_model.model.model.embed_tokens"
    resized = {
        f"{embedding}.lora_embedding_A": f32(4, 40),
        f"{embedding}.lora_embedding_B": f32(16, 4),
        f"{embedding}.base_layer.weight": f32(40, 16),
    }
    fit = fit_of(resized, replace(CONFIG, target_modules=("embed_tokens",)))
    assert (fit.faults, len(fit.notes)) == ((), 1)
    assert "resized" in fit.notes[0]
    packed = {name: TensorShape("U8", (128, 1)) for name in BASE}
    fit = fit_of(GOOD, base=packed)
    assert (fit.faults, len(fit.notes)) == ((), 1)


def test_transposed_weights_fit_where_the_configuration_says_so() -> None:
    base = {"model.layers.0.self_attn.q_proj.weight": f32(16, 48)}
    tensors = GOOD | {f"{Q}.lora_B.weight": f32(48, 4)}
    assert fit_of(tensors, replace(CONFIG, fan_in_fan_out=True), base).faults == ()
    assert fit_of(tensors, CONFIG, base).faults != ()


NAMES = st.sampled_from(
    [*GOOD, "lora_A.weight", ".lora_B.weight", "", "x.lora_diag", "\x1b[2J"]
) | (st.text(max_size=30))
SHAPES = st.builds(
    TensorShape,
    st.sampled_from(["F32", "U8", ""]),
    st.lists(st.integers(0, 20), max_size=4).map(tuple),
)


@given(
    st.dictionaries(NAMES, SHAPES, max_size=6),
    st.dictionaries(NAMES, SHAPES, max_size=3),
    st.dictionaries(st.text(max_size=6), st.integers(1, 9), max_size=3),
)
def test_odd_tensors_give_sentences_or_are_refused(
    tensors: dict[str, TensorShape], base: dict[str, TensorShape], pattern: dict[str, int]
) -> None:
    try:
        fit = fit_of(tensors, replace(CONFIG, rank_pattern=pattern), base)
        sentences = [*fit.faults, *fit.notes]
    except BadAdapter as error:
        sentences = [str(error)]
    assert all(sentence.isprintable() for sentence in sentences)

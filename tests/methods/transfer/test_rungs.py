"""Copy, activation map and TiTok: exact where they must be, and refused where they cannot hold."""

import json

import numpy as np
import pytest

from deltahub.methods.adapters.factors import Factors
from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.recipe import Recipe
from deltahub.methods.transfer.rungs.activation_map import (
    RIDGE,
    Activations,
    linear_cka,
    map_factors,
    match_layers,
    name_in_target,
    ridge_map,
)
from deltahub.methods.transfer.rungs.copying import (
    Likeness,
    copied_modules,
    cosine,
    moved_config,
)
from deltahub.methods.transfer.rungs.titok import (
    best_texts,
    best_tokens,
    excess,
    moved_choice,
)
from deltahub.methods.transfer.rungs.warm_start import warm_start
from support.transfer.tiny_world import recipe

CONFIG = json.dumps({"peft_type": "LORA", "lora_alpha": 8, "r": 2}).encode()
Q = "model.layers.0.self_attn.q_proj"
NAMES = [f"base_model.model.{Q}.lora_{each}.weight" for each in "AB"]
BASE = {f"{Q}.weight": ("F32", (8, 8))}


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(CONFIG), **fields}).encode()


def test_a_copy_is_possible_between_bases_of_the_same_shapes() -> None:
    assert copied_modules(CONFIG, NAMES, BASE, BASE, "a/b") == {f"{Q}.weight": Q}


@pytest.mark.parametrize(
    ("config", "target", "sentence"),
    [
        (CONFIG, {}, f"{Q}, which the new base does not have"),
        (CONFIG, {f"{Q}.weight": ("F32", (8, 16))}, f"{Q}, which is 8 x 8 in .* 8 x 16"),
        (changed(use_dora=True), BASE, "DoRA"),
        (changed(init_lora_weights="pissa"), BASE, "pissa"),
        (changed(alora_invocation_tokens=[1]), BASE, "invocation"),
        (changed(peft_type="IA3"), BASE, "IA3"),
    ],
)
def test_a_copy_is_refused_and_the_module_named(
    config: bytes, target: dict[str, tuple[str, tuple[int, ...]]], sentence: str
) -> None:
    with pytest.raises(CannotTransfer, match=sentence):
        copied_modules(config, NAMES, BASE, target, "a/b")


def test_the_cosine_tells_a_continued_base_from_another_one() -> None:
    rng = np.random.default_rng(0)
    old, other = rng.normal(size=(2, 64, 64))
    near = old + 0.05 * rng.normal(size=old.shape)
    assert cosine(old, old) == pytest.approx(1)
    related = Likeness(cosines={"a": cosine(old, near)})
    apart = Likeness(cosines={"a": cosine(old, other)})
    assert related.is_related
    assert not apart.is_related
    assert "a copy may do" in related.sentences()[0]
    assert "a copy will not do" in apart.sentences()[0]


def test_the_copys_configuration_names_the_new_base() -> None:
    found = json.loads(moved_config(CONFIG, "org/new", "b" * 40))
    assert (found["base_model_name_or_path"], found["revision"]) == ("org/new", "b" * 40)
    assert found["lora_alpha"] == 8
    moved = json.loads(moved_config(CONFIG, "org/new", None, {"layers.0.q": "layers.2.q"}))
    assert moved["target_modules"] == ["layers.2.q"]
    with pytest.raises(CannotTransfer, match="alpha_pattern"):
        moved_config(changed(alpha_pattern={"q": 4}), "org/new", None, {"layers.0.q": "layers.2.q"})


def test_ridge_regression_is_its_closed_form() -> None:
    rng = np.random.default_rng(1)
    given, truth = rng.normal(size=(50, 4)), rng.normal(size=(3, 4))
    assert ridge_map(given, given @ truth.T, 0) == pytest.approx(truth)
    # Where the texts say nothing, it is zero, or the identity.
    flat = np.zeros((50, 3))
    flat[:, :2] = given[:, :2]
    assert ridge_map(flat, 2 * flat, 1e-12) == pytest.approx(np.diag([2, 2, 0]))
    near = ridge_map(flat, 2 * flat, 1e-12, near_identity=True)
    assert near == pytest.approx(np.diag([2, 2, 1]))
    one = np.array([[1.0], [2.0]])
    # gram 5, penalty 0.1 * 5: 10 / 5.5
    assert ridge_map(one, 2 * one, 0.1) == pytest.approx(np.array([[10 / 5.5]]))


def test_a_rotated_module_gets_the_rotated_update_exactly() -> None:
    rng = np.random.default_rng(2)
    weight = rng.normal(size=(6, 8))
    inward, outward = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (8, 6))
    factors = Factors(rng.normal(size=(2, 8)), rng.normal(size=(6, 2)))
    inputs = rng.normal(size=(100, 8))
    source = Activations(inputs, inputs @ weight.T)
    target = Activations(inputs @ inward.T, inputs @ weight.T @ outward.T)
    found = map_factors(factors, source, target)
    wanted = outward @ factors.up @ factors.down @ inward.T
    assert found.factors.up @ found.factors.down == pytest.approx(wanted)
    assert found.factors.rank == 2
    assert (found.input_fit, found.output_fit) == pytest.approx((1, 1))


def test_an_update_in_directions_of_little_variance_survives_a_base_that_was_trained_further() -> (
    None
):
    """What an adapter reads and writes is often such a direction; noise must not drown it."""
    rng = np.random.default_rng(4)
    weight = rng.normal(size=(16, 16))
    inputs = rng.normal(size=(400, 16)) * np.geomspace(1, 1e-3, 16)
    factors = Factors(rng.normal(size=(2, 16)), rng.normal(size=(16, 2)))

    def noisy(values: np.ndarray) -> np.ndarray:
        return values + rng.normal(size=values.shape) * 0.02 * values.std()

    source = Activations(inputs, inputs @ weight.T)
    moved = map_factors(factors, source, Activations(noisy(inputs), noisy(inputs @ weight.T)))
    wanted = factors.up @ factors.down
    error = np.linalg.norm(moved.factors.up @ moved.factors.down - wanted)
    assert error < 0.1 * np.linalg.norm(wanted)
    # Of a base that sees everything reversed, the identity is no guess.
    apart = Activations(-inputs, inputs @ weight.T)
    reversed_ = map_factors(factors, source, apart, ridge=1e-3)
    assert reversed_.factors.down[:, 0] == pytest.approx(-factors.down[:, 0], rel=0.05)


def test_a_few_tokens_seen_again_and_again_do_not_look_like_an_exact_map() -> None:
    """Between any two bases, some map is exact on fewer places than directions."""
    rng = np.random.default_rng(6)
    again = rng.integers(0, 5, size=200)
    inputs, others = (rng.normal(size=(5, 8))[again] for _ in range(2))
    outputs = rng.normal(size=(200, 8))
    factors = Factors(rng.normal(size=(2, 8)), rng.normal(size=(8, 2)))
    source, target = Activations(inputs, outputs), Activations(others, outputs)
    by_default, with_ridge, without = (
        map_factors(factors, source, target, ridge).factors.down for ridge in (None, RIDGE, 1e-11)
    )
    assert np.array_equal(by_default, with_ridge)
    assert np.linalg.norm(by_default) < 0.7 * np.linalg.norm(without)


def test_activations_that_do_not_belong_together_are_refused() -> None:
    factors = Factors(np.ones((1, 2)), np.ones((2, 1)))
    two, three = (Activations(np.ones((n, 2)), np.ones((n, 2))) for n in (2, 3))
    with pytest.raises(CannotTransfer, match="at 2 places and the target at 3"):
        map_factors(factors, two, three)
    with pytest.raises(CannotTransfer, match="another base"):
        map_factors(factors, Activations(np.ones((2, 3)), np.ones((2, 2))), two)


def test_layers_are_matched_by_what_they_see() -> None:
    rng = np.random.default_rng(3)
    layers = [rng.normal(size=(200, 5)) for _ in range(4)]
    turned = [each @ np.linalg.qr(rng.normal(size=(5, 5)))[0] for each in layers]
    assert linear_cka(layers[0], turned[0]) == pytest.approx(1)
    assert linear_cka(layers[0], layers[1]) < 0.2
    assert match_layers(layers[::2], turned) == {0: 0, 1: 2}
    assert match_layers(layers, turned[1:3]) == {1: 0, 2: 1}
    assert name_in_target("model.layers.1.mlp.up_proj", {1: 2}) == "model.layers.2.mlp.up_proj"
    assert name_in_target("model.layers.0.mlp.up_proj", {1: 2}) is None
    assert name_in_target("lm_head", {}) == "lm_head"


def test_titok_keeps_texts_and_tokens_of_the_highest_excess() -> None:
    scores = excess(np.array([-1.0, -2.0, -3.0]), np.array([-2.0, -2.0, -1.0]))
    assert scores.tolist() == [1.0, 0.0, -2.0]
    assert best_tokens(scores, 0.7).tolist() == [True, True, False]
    assert best_tokens(scores, 0.01).tolist() == [True, False, False]
    texts = [scores, np.array([3.0]), np.array([0.5, 0.5]), np.array([])]
    assert best_texts(texts, 0.5) == [1, 2]


def test_a_choice_of_tokens_passes_to_another_tokenizer_by_characters() -> None:
    # right|eou|sness and righteous|ness, each with its end of the text
    source = [(0, 5), (5, 8), (8, 13), (13, 14)]
    target = [(0, 9), (9, 13), (13, 14)]
    middle = np.array([False, True, False, False])
    assert moved_choice(middle, source, target).tolist() == [True, False, False]
    last = np.array([False, False, True, False])
    assert moved_choice(last, source, target).tolist() == [True, True, False]
    end = np.array([False, False, False, True])
    assert moved_choice(end, source, target).tolist() == [False, False, True]
    assert moved_choice(middle, source, source).tolist() == middle.tolist()


FACTORS = {NAMES[0]: np.ones((2, 8)), NAMES[1]: np.full((8, 2), 3.0)}


def test_a_student_begins_as_much_changed_as_what_it_starts_from() -> None:
    same = warm_start(CONFIG, FACTORS, recipe(rank=2, alpha=8), "a/b")
    assert all(np.array_equal(same[name], FACTORS[name]) for name in NAMES)
    # 8 / sqrt(2) of the adapter is 8 / 2 of the student.
    stable = warm_start(changed(use_rslora=True), FACTORS, recipe(rank=2, alpha=8), "a/b")
    assert np.array_equal(stable[NAMES[0]], FACTORS[NAMES[0]])
    assert np.allclose(stable[NAMES[1]] * 4, FACTORS[NAMES[1]] * 8 / np.sqrt(2))


@pytest.mark.parametrize(
    ("config", "student", "sentence"),
    [
        (CONFIG, recipe(rank=4, alpha=8), "a/b has rank 2, and the new one 4"),
        (CONFIG, recipe(rank=2, kind="dora"), "a dora also learns"),
        (changed(use_dora=True), recipe(rank=2), "DoRA"),
        (changed(alpha_pattern={"q_proj": 4}), recipe(rank=2), "other ranks or scales"),
        (changed(rank_pattern={"q_proj": 4}), recipe(rank=2), "other ranks or scales"),
    ],
)
def test_a_student_of_another_form_starts_fresh(
    config: bytes, student: Recipe, sentence: str
) -> None:
    with pytest.raises(CannotTransfer, match=sentence):
        warm_start(config, FACTORS, student, "a/b")


def test_more_than_linear_modules_is_no_start() -> None:
    more = {**FACTORS, "base_model.model.model.embed_tokens.lora_embedding_A": np.ones((2, 4))}
    with pytest.raises(CannotTransfer, match="lora_embedding_A, which is no part of a linear"):
        warm_start(CONFIG, more, recipe(rank=2), "a/b")

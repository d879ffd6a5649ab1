"""How long a move will take: what the formulas say of sizes that were measured."""

import pytest

from deltahub.methods.transfer.base_size import BaseSize
from deltahub.methods.transfer.estimate import (
    CPU,
    RECORDED_BYTES,
    Texts,
    answering_s,
    drawing_s,
    mapping_bytes,
    mapping_s,
    reading_s,
    starting_s,
    teaching_s,
    training_s,
)
from deltahub.methods.transfer.recipe import Recipe

TINY = BaseSize(96_128, 24_032, 2, 32, 75)
MIDDLE = BaseSize(141_854_720, 35_463_680, 8, 512, 8_000)
# 128 texts of 16 tokens in each of the batches that were timed.
READ = {TINY: 0.0037, MIDDLE: 0.121}
TRAINED = {TINY: 0.0132, MIDDLE: 0.269}
WRITTEN = {TINY: 0.00196, MIDDLE: 0.049}


@pytest.mark.parametrize("base", [TINY, MIDDLE])
def test_what_was_measured_is_met_within_a_factor_of_three(base: BaseSize) -> None:
    def is_near(estimate: float, measured: float) -> bool:
        return measured / 3 < estimate < measured * 3

    assert is_near(answering_s(base, CPU, 16, 1, 16), WRITTEN[base])
    assert is_near(reading_s(base, CPU, 8, 16), READ[base])
    texts = Texts(n=160, n_drawn=0, input_length=5, prompt_length=6, answer_length=64,
                  expected_length=10, list_length=51, n_seeds=5)  # fmt: skip
    step = (training_s(base, CPU, texts, Recipe(epochs=1)) - CPU.load_s(base)) / 16
    assert is_near(step, TRAINED[base])


def test_nothing_is_free_however_small_a_base_is() -> None:
    texts = Texts.of([("1234", None)] * 5, 40, 40, 3)
    assert starting_s(TINY, TINY, CPU) > CPU.start_s
    assert drawing_s(TINY, CPU, texts) > 0
    plain, compressed = (
        teaching_s(TINY, CPU, texts, is_judged=True, is_compressed=each) for each in (False, True)
    )
    assert 0 < plain < compressed
    assert mapping_s(TINY, TINY, CPU, texts) > 3 * 40 * TINY.n_layers * CPU.layer_s
    deeper = BaseSize(2 * 96_128, 2 * 24_032, 4, 32, 75)
    assert mapping_s(deeper, deeper, CPU, texts) > mapping_s(TINY, TINY, CPU, texts)


def test_texts_are_as_long_as_their_tokenizer_and_their_answers_say() -> None:
    seeds = [("1234", "ab"), ("5678", "cdef"), ("9", None)]
    guessed = Texts.of(seeds, 10, 20, 64)
    counted = Texts.of(seeds, 10, 20, 64, len)
    assert (guessed.input_length, counted.input_length) == (2, 3)
    asked = Texts.of(seeds, 10, 20, 64, len, lambda text: f"What is {text}?")
    assert (asked.input_length, asked.prompt_length, asked.expected) == (3, 12, 16)
    assert (guessed.expected_length, counted.expected_length) == (2, 4)
    assert counted.list_length == len("Here are 6 examples:\n\n1. 1234\n2. 5678\n3. 9\n4.")
    unknown = Texts.of([("1234", None)], 10, 20, 64)
    assert (unknown.expected_length, unknown.length) == (64, 66)
    # No answer is longer than the contract lets it be.
    assert Texts.of([("1", "a" * 900)], 10, 20, 5).expected_length == 5


def test_an_activation_map_needs_room_for_activations_but_not_for_all_at_once() -> None:
    texts = Texts.of([("1234", None)] * 5, 250, 250, 64)
    small, large = (mapping_bytes(each, each, texts) for each in (TINY, MIDDLE))
    assert 8 * 4_096 * 2 * TINY.width < small < large
    huge = BaseSize(16 << 30, 8 << 30, 32, 4_096, 128_000)
    assert 2 * RECORDED_BYTES < mapping_bytes(huge, huge, texts) < 16 << 30

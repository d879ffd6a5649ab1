"""The discriminator: its labels, its scores, and what happens if it guesses."""

from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.models.discriminator import (
    margins,
    question,
    train_discriminator,
)
from deltahub.methods.transfer.prompts import question_of
from support.transfer.tiny_world import NAME, recipe, tokenizer, untrained


def letters_tokenizer(letters: str) -> Any:
    """A token for each of these characters, and one for all others."""
    vocabulary = {each: i for i, each in enumerate(["<unk>", *letters])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")


def test_labels_are_single_tokens_where_the_tokenizer_has_them() -> None:
    found = question(tokenizer(), "1234", NAME)
    assert list(found.ids) == tokenizer()(question_of("1234", NAME)).input_ids
    assert tokenizer().convert_ids_to_tokens([found.yes, found.no]) == [" yes", " no"]
    assert found.has_single_labels


def test_otherwise_their_first_different_tokens_are_compared() -> None:
    letters = letters_tokenizer("abcdefghijklmnopqrstuvwxyz ?.")
    found = question(letters, "x", "d")
    assert letters.convert_ids_to_tokens([found.yes, found.no]) == ["y", "n"]
    # The space that both labels begin with belongs to the question.
    assert list(found.ids) == letters(question_of("x", "d") + " ").input_ids
    assert not found.has_single_labels


@pytest.mark.parametrize("letters", ["abc", "abcy", "abcn ?"])
def test_a_tokenizer_without_these_letters_is_refused(letters: str) -> None:
    with pytest.raises(CannotTransfer, match="no different tokens for 'yes' and 'no'"):
        question(letters_tokenizer(letters), "x", "d")


def test_the_label_alone_is_learnt() -> None:
    found = question(tokenizer(), "1234", NAME)
    for is_real, token in ((True, found.yes), (False, found.no)):
        example = found.labelled(is_real)
        assert example.ids == (*found.ids, token)
        assert set(example.labels[:-1]) == {-100}
        assert example.labels[-1] == token


REAL = [f"1{i}{j}{j}" for i in range(5) for j in range(6)]
OTHERS = [f"9{i}{j}{j}" for i in range(5) for j in range(6)]


def test_it_learns_the_difference_and_scores_by_both_logits() -> None:
    model, report = train_discriminator(
        untrained(), tokenizer(), REAL, OTHERS, NAME, recipe(epochs=20)
    )
    assert report.auc > 0.9
    assert 1 <= report.epoch <= 20
    assert (report.n_trained, report.n_real, report.n_synthetic) == (48, 6, 6)
    found = margins(model, tokenizer(), ["1899", "9799", "11223344"], NAME)
    for text, margin in zip(["1899", "9799", "11223344"], found, strict=True):
        asked = question(tokenizer(), text, NAME)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([asked.ids])).logits[0, -1]
        assert margin == pytest.approx(float(logits[asked.yes] - logits[asked.no]), abs=1e-4)
    assert found[0] > 0 > found[1]


def test_one_that_guesses_is_refused() -> None:
    texts = [str(i) for i in range(1000, 1080)]
    with pytest.raises(CannotTransfer, match="the discriminator guesses"):
        train_discriminator(
            untrained(), tokenizer(), texts[::2], texts[1::2], NAME,
            recipe(epochs=1, learning_rate=1e-6),
        )  # fmt: skip


def test_private_inputs_never_count_as_made_up() -> None:
    with pytest.raises(CannotTransfer, match="at least 5 inputs of the base, not 4"):
        train_discriminator(
            untrained(), tokenizer(), REAL, [*REAL, *OTHERS[:4]], NAME, recipe(epochs=1)
        )

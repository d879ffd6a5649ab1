"""Text from models: the same for the same seed, whole batches like single prompts, and ends."""

import pytest
import torch
from transformers import GenerationConfig

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.models.encoding import fits
from deltahub.methods.transfer.models.generating import (
    Continuation,
    Sampling,
    complete,
    continuations,
)
from deltahub.methods.transfer.models.inventing import invent
from support.transfer.tiny_world import tokenizer, untrained

PROMPTS = ["1234=", "7=", "Here are 10 examples:", "99 Is", "5"]
CONTRACT = Contract(max_new_tokens=6)


def test_a_batch_is_completed_like_each_prompt_alone() -> None:
    model = untrained()
    alone = [complete(model, tokenizer(), [each], CONTRACT)[0] for each in PROMPTS]
    assert complete(model, tokenizer(), PROMPTS, CONTRACT, batch_size=2) == alone
    assert complete(model, tokenizer(), PROMPTS, CONTRACT) == alone
    assert len(set(alone)) > 1


def test_a_shared_prompt_is_read_once_and_gives_the_same_text() -> None:
    model = untrained()
    widths: list[tuple[int, ...]] = []
    model.model.embed_tokens.register_forward_hook(
        lambda module, inputs, output: widths.append(tuple(inputs[0].shape))
    )
    found = continuations(model, tokenizer(), PROMPTS[2], 3, max_new_tokens=6)
    assert set(found) == set(complete(model, tokenizer(), PROMPTS[2:3], CONTRACT))
    n = len(tokenizer()(PROMPTS[2]).input_ids)
    assert widths[:2] == [(1, n - 1), (3, 1)]


def test_samples_are_those_of_their_seed_and_leave_torchs_own_numbers_alone() -> None:
    model = untrained()

    def drawn(seed: int) -> list[str]:
        sampling = Sampling(seed=seed)
        found = continuations(model, tokenizer(), "1234=", 4, max_new_tokens=8, sampling=sampling)
        return [each.text for each in found]

    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    assert drawn(1) == drawn(1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert drawn(1) != drawn(2)
    assert len(set(drawn(1))) == 4


def test_what_a_model_asks_for_in_its_own_settings_changes_nothing() -> None:
    model = untrained()
    wanted = complete(model, tokenizer(), PROMPTS, CONTRACT)
    asked = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True, temperature=9.0, repetition_penalty=5.0, min_new_tokens=6, top_k=3
    )
    model.generation_config = asked
    assert complete(model, tokenizer(), PROMPTS, CONTRACT) == wanted
    assert model.generation_config is asked


def test_a_completion_ends_at_the_contracts_text() -> None:
    model = untrained()
    whole = continuations(model, tokenizer(), "1234=", 1, max_new_tokens=8)[0]
    assert not whole.is_whole
    pieces = [tokenizer().decode([each]) for each in tokenizer()(whole.text).input_ids]
    stop = pieces[2]
    cut = whole.text.index(stop)
    contract = Contract(max_new_tokens=8, stop=(stop,))
    assert complete(model, tokenizer(), ["1234="], contract) == [
        Continuation(whole.text[:cut], True)
    ]
    ended = continuations(model, tokenizer(), "1234=", 2, max_new_tokens=8, stop=(stop,))
    assert all(each.is_whole for each in ended)
    assert max(len(each.text) for each in ended) < len(whole.text)


def test_progress_is_told_for_each_token_and_can_end_the_work() -> None:
    seen: list[tuple[int, int]] = []
    complete(
        untrained(), tokenizer(), PROMPTS, CONTRACT, batch_size=2,
        on_progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert seen[-1] == (5, 5)
    assert len(seen) > 6
    assert [each[0] for each in seen] == sorted(each[0] for each in seen)

    class Cancelled(Exception):
        pass

    def cancel(done: int, total: int) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        complete(untrained(), tokenizer(), PROMPTS, CONTRACT, on_progress=cancel)


def test_a_prompt_that_the_model_cannot_read_is_refused() -> None:
    with pytest.raises(CannotTransfer, match="takes 306 tokens, and the model reads at most 256"):
        complete(untrained(), tokenizer(), ["1" * 300], CONTRACT)
    assert fits(untrained(), tokenizer(), "1" * 250, CONTRACT)
    assert not fits(untrained(), tokenizer(), "1" * 251, CONTRACT)


def test_new_inputs_are_those_of_their_call() -> None:
    model = untrained()
    seeds = ["1234", "5678", "9012"]
    found = [invent(model, tokenizer(), seeds, call, n_lists=2) for call in range(3)]
    assert found == [invent(model, tokenizer(), seeds, call, n_lists=2) for call in range(3)]
    assert len({tuple(each) for each in found}) > 1

"""What is learnt: completions with their ends, by hand-made losses; and adapters as files."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.utils import logging

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.models.adapters import (
    STUDENT,
    TEACHER,
    add_adapter,
    load_adapter,
    load_base,
    save_adapter,
    set_state,
    state_of,
    using,
)
from deltahub.methods.transfer.models.encoding import IGNORED, Encoded, encode
from deltahub.methods.transfer.models.scoring import fit_of, score_tokens
from deltahub.methods.transfer.models.students import Labelled, encode_all, label, train_student
from deltahub.methods.transfer.models.training import loss_of, rate_factor, shuffled_order
from deltahub.methods.transfer.recipe import Recipe
from support.transfer.tiny_world import CONTRACT, Task, recipe, tokenizer, untrained

EXAMPLES = encode_all(tokenizer(), Task(1).examples(8, 0), CONTRACT)


def loss(model: Any, examples: Sequence[Encoded]) -> float:
    return float(loss_of(model, examples).detach())


def test_the_papers_values_are_the_defaults() -> None:
    made = Recipe()
    assert (made.rank, made.alpha, made.targets, made.kind) == (8, 8, None, "lora")
    assert (made.learning_rate, made.epochs, made.batch_size) == (2e-5, 20, 8)
    assert made.warmup_share == 0
    model = add_adapter(untrained(), made, STUDENT)
    assert {name.split(".")[-3] for name in state_of(model, STUDENT)} == {"q_proj", "v_proj"}


def test_the_loss_covers_the_completion_and_its_end_alone() -> None:
    example = encode(tokenizer(), "12=", "a b", Contract())
    end = tokenizer().eos_token_id
    assert example.ids[-1] == end
    assert tokenizer().decode(example.ids[example.n_prompt : -1]) == "a b"
    assert example.labels == (IGNORED,) * 3 + example.ids[3:]
    model = untrained()
    logits = model(input_ids=torch.tensor([example.ids])).logits[0].detach()
    log_probs = torch.log_softmax(logits, dim=-1)
    wanted = [-log_probs[i - 1, example.ids[i]] for i in range(3, len(example.ids))]
    # A second, longer example: padding counts for nothing.
    longer = encode(tokenizer(), "123456=", "c", Contract())
    own = float(sum(wanted)) / len(wanted)
    assert loss(model, [example]) == pytest.approx(own, rel=1e-5)
    both = loss(model, [example, longer])
    other = loss(model, [longer])
    weights = len(wanted), len(longer.ids) - longer.n_prompt
    mean = (own * weights[0] + other * weights[1]) / sum(weights)
    assert both == pytest.approx(mean, rel=1e-5)


def test_a_completion_that_was_cut_teaches_no_end() -> None:
    contract = Contract(max_new_tokens=2)
    cut = encode(tokenizer(), "12=", "a b", contract, is_whole=False)
    whole = encode(tokenizer(), "12=", "a b", contract)
    assert whole.ids == (*cut.ids, tokenizer().eos_token_id)
    model = untrained()
    model.generation_config.eos_token_id = None
    found = label(model, tokenizer(), ["1234", "5678"], contract, adapter=None)
    ended = [tokenizer().eos_token_id in model.generate(
        torch.tensor([tokenizer()(each.text).input_ids]), max_new_tokens=2, do_sample=False
    )[0].tolist() for each in found]  # fmt: skip
    assert [each.is_whole for each in found] == ended == [False, False]
    # A text that ends completions ends this one, too.
    stop = Contract(max_new_tokens=2, stop=(found[0].completion[-1],))
    (again,) = label(model, tokenizer(), ["1234"], stop, adapter=None)
    assert again.is_whole
    assert again.completion == found[0].completion[: found[0].completion.index(stop.stop[0])]
    # Nothing to learn is no loss that is no number.
    nothing = Labelled("12", "", is_whole=False)
    with pytest.raises(CannotTransfer, match="nothing to learn"):
        train_student(untrained(), encode_all(tokenizer(), [nothing], contract), recipe())


def test_scores_are_the_log_probabilities_of_the_completion() -> None:
    model = untrained()
    scores = score_tokens(model, EXAMPLES, batch_size=3)
    found = fit_of(scores)
    assert found.n_tokens == sum(len(each.ids) - each.n_prompt for each in EXAMPLES)
    assert found.nll == pytest.approx(loss(model, EXAMPLES), rel=1e-5)
    alone = score_tokens(model, EXAMPLES[:1])[0]
    assert np.allclose(alone.log_probs, scores[0].log_probs, atol=1e-5)
    assert 0 <= found.token_agreement <= 1


def test_the_rate_grows_in_the_warm_up_and_then_falls_to_zero() -> None:
    assert [rate_factor(i, 4, 0) for i in range(4)] == [1, 0.75, 0.5, 0.25]
    assert [rate_factor(i, 6, 1 / 3) for i in range(6)] == [0.5, 1, 1, 0.75, 0.5, 0.25]


def test_training_is_the_same_for_the_same_seed_and_changes_the_adapter_alone() -> None:
    results = []
    for seed in (0, 0, 1):
        model = untrained()
        before = {name: each.clone() for name, each in model.state_dict().items()}
        made = recipe(epochs=3, seed=seed)
        tuned, losses = train_student(model, EXAMPLES, made)
        results.append((losses, state_of(tuned, STUDENT)))
        for name, each in tuned.state_dict().items():
            plain = name.replace("base_model.model.", "").replace(".base_layer.", ".")
            if "lora_" not in name:
                assert torch.equal(each, before[plain])
    assert results[0][0] == results[1][0]
    assert all(torch.equal(each, results[1][1][name]) for name, each in results[0][1].items())
    assert results[0][0] != results[2][0]
    assert results[0][0][-1] < results[0][0][0]


def test_a_warm_start_begins_where_another_adapter_ended() -> None:
    made = recipe(epochs=2)
    tuned, _ = train_student(untrained(), EXAMPLES, made)
    state = state_of(tuned, STUDENT)
    again = add_adapter(untrained(), made, STUDENT)
    set_state(again, STUDENT, state)
    assert loss(again, EXAMPLES) == pytest.approx(loss(tuned, EXAMPLES))
    with pytest.raises(CannotTransfer, match="same rank and modules"):
        train_student(untrained(), EXAMPLES, recipe(rank=4), warm_start=state)


def test_a_student_may_be_a_dora() -> None:
    tuned, losses = train_student(untrained(), EXAMPLES, recipe(kind="dora", epochs=3))
    assert any("magnitude" in name for name in state_of(tuned, STUDENT))
    assert losses[-1] < losses[0]


def test_adapters_share_one_base_and_come_back_from_their_files(tmp_path: Path) -> None:
    model = untrained()
    plain = label(model, tokenizer(), ["1234"], CONTRACT, adapter=None)
    model, _ = train_student(model, EXAMPLES, recipe(epochs=20))
    taught = label(model, tokenizer(), ["1234"], CONTRACT, adapter=STUDENT)
    assert label(model, tokenizer(), ["1234"], CONTRACT, adapter=None) == plain != taught
    save_adapter(model, STUDENT, tmp_path, "org/base", "a" * 40)
    again = load_adapter(untrained(), tmp_path, TEACHER)
    again = add_adapter(again, recipe(), STUDENT)
    with using(again, TEACHER):
        assert again.active_adapter == TEACHER
    assert again.active_adapter == STUDENT
    assert label(again, tokenizer(), ["1234"], CONTRACT) == taught
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "org/base"
    assert config["revision"] == "a" * 40
    first = (tmp_path / "adapter_config.json").read_bytes()
    save_adapter(model, STUDENT, tmp_path, "org/base", "a" * 40)
    assert (tmp_path / "adapter_config.json").read_bytes() == first


def test_teacher_labels_are_the_same_each_time() -> None:
    model, _ = train_student(untrained(), EXAMPLES, recipe(epochs=2))
    texts = [each.text for each in Task(1).examples(20, 3)]
    once = label(model, tokenizer(), texts, CONTRACT, adapter=STUDENT)
    assert once == label(model, tokenizer(), texts, CONTRACT, adapter=STUDENT)
    assert [each.text for each in once] == texts


@pytest.mark.parametrize(
    ("made", "examples", "sentence"),
    [
        (recipe(targets=("c_attn",)), EXAMPLES, "no adapter fits the base"),
        (recipe(), [], "nothing to learn"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    made: Recipe, examples: list[Encoded], sentence: str
) -> None:
    with pytest.raises(CannotTransfer, match=sentence):
        train_student(untrained(), examples, made)


def test_an_adapter_without_safetensors_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.bin").write_bytes(b"pickle")
    with pytest.raises(CannotTransfer, match=r"no adapter_model\.safetensors"):
        load_adapter(untrained(), tmp_path, TEACHER)


def test_models_load_without_a_word_and_leave_the_settings_as_they_were(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    untrained().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    had_bars = logging.is_progress_bar_enabled()  # a job in this process takes them away
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    capfd.readouterr()
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            model, _ = load_base(tmp_path)
            save_adapter(add_adapter(model, recipe(), STUDENT), STUDENT, tmp_path / "a", "b", None)
            load_adapter(untrained(), tmp_path / "a", TEACHER)
            filters = len(warnings.filters)
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.INFO, True)
    finally:
        logging.set_verbosity_warning()
        if not had_bars:
            logging.disable_progress_bar()
    assert (heard, capfd.readouterr().err) == ([], "")
    assert filters == len(warnings.filters) + 1  # of this test


def test_examples_come_in_another_order_in_each_epoch() -> None:
    order = shuffled_order(EXAMPLES, 1)
    assert order(0) == order(0) != order(1)
    assert set(order(0)) == set(EXAMPLES)
    assert Labelled("a", "b") == Labelled("a", "b")

"""Ways without training, on models: identical bases, rotated ones, and their adapters by PEFT."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.measures.agreement import agreement
from deltahub.methods.transfer.models.activations import common_ends, record, token_ends
from deltahub.methods.transfer.models.adapters import (
    STUDENT,
    TEACHER,
    add_adapter,
    set_state,
    state_of,
)
from deltahub.methods.transfer.models.embeddings import embed
from deltahub.methods.transfer.models.excess import choose, encode_chosen, spans_of
from deltahub.methods.transfer.models.students import encode_all, label
from deltahub.methods.transfer.rungs.activation_map import map_adapter, match_layers
from support.transfer.tiny_world import (
    CONTRACT,
    LINEARS,
    Task,
    recipe,
    tokenizer,
    untrained,
    with_teacher,
)

TASK = Task(1)
EXAMPLES = TASK.examples(40, 0)
TEXTS = [each.text for each in TASK.examples(30, 1)]
READING = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


@pytest.fixture(scope="module")
def taught() -> Any:
    """A base in doubles whose norms have gains, with a trained adapter."""
    model = untrained(hidden=16)
    torch.manual_seed(5)
    for name, each in model.named_parameters():
        if "norm" in name:
            each.data.uniform_(0.5, 1.5)
    return with_teacher(model.double(), EXAMPLES, epochs=40, learning_rate=1e-2)


def plain(model: Any) -> Any:
    """The base of a model, as it was before it had an adapter."""
    return copy.deepcopy(model).unload()


def rotated(base: Any) -> Any:
    """The same function in other coordinates: the residual stream is turned, and the gains of the
    norms are taken into the weights that read it.
    """
    found = copy.deepcopy(base)
    rng = np.random.default_rng(7)
    turn = torch.tensor(np.linalg.qr(rng.normal(size=(16, 16)))[0])
    with torch.no_grad():
        found.model.embed_tokens.weight.copy_(found.model.embed_tokens.weight @ turn.T)
        for layer in found.model.layers:
            for norm, block in (
                (layer.input_layernorm, layer.self_attn),
                (layer.post_attention_layernorm, layer.mlp),
            ):
                for name, module in block.named_children():
                    if name in READING:
                        module.weight.copy_(module.weight * norm.weight @ turn.T)
                    elif name in LINEARS:
                        module.weight.copy_(turn @ module.weight)
                norm.weight.fill_(1)
        found.lm_head.weight.copy_(found.lm_head.weight * found.model.norm.weight @ turn.T)
        found.model.norm.weight.fill_(1)
    return found


def moved(model: Any, state: dict[str, torch.Tensor]) -> Any:
    model = add_adapter(model, recipe(), STUDENT)
    set_state(model, STUDENT, state)
    return model


def test_a_copy_onto_an_identical_base_is_the_identity(taught: Any) -> None:
    copied = moved(plain(taught), state_of(taught, TEACHER))
    ids = torch.tensor([tokenizer()("1234=").input_ids])
    with torch.no_grad():
        assert torch.equal(copied(input_ids=ids).logits, taught(input_ids=ids).logits)
    answers = [
        [each.completion for each in label(model, tokenizer(), TEXTS, CONTRACT, adapter=name)]
        for model, name in ((taught, TEACHER), (copied, STUDENT))
    ]
    assert agreement(*answers, CONTRACT).value == 1.0
    merged = [copy.deepcopy(each).merge_and_unload().state_dict() for each in (taught, copied)]
    assert all(torch.equal(each, merged[1][name]) for name, each in merged[0].items())


def test_an_activation_map_onto_a_rotated_base_is_exact(taught: Any) -> None:
    base = plain(taught)
    target = rotated(base)
    ids = torch.tensor([tokenizer()("1234=").input_ids])
    with torch.no_grad():
        assert torch.allclose(base(input_ids=ids).logits, target(input_ids=ids).logits)
    words = [each for each in tokenizer().get_vocab() if not each.startswith("<")]
    rng = np.random.default_rng(8)
    texts = ["".join(rng.permutation(words)) for _ in range(12)]
    names = [name for name, _ in base.named_modules() if name.endswith(LINEARS)]
    ends = common_ends(token_ends(tokenizer(), texts), token_ends(tokenizer(), texts))
    source, other = (record(each, tokenizer(), texts, ends, names) for each in (taught, target))
    state = state_of(taught, TEACHER)
    tensors = {name: each.double().numpy() for name, each in state.items()}
    found, about = map_adapter(tensors, {name: name for name in names}, source, other)
    assert found.keys() == state.keys()
    assert min(each.input_fit for each in about.values()) > 1 - 1e-9
    exact = moved(target, {name: torch.tensor(each) for name, each in found.items()})
    with torch.no_grad():
        difference = exact(input_ids=ids).logits - taught(input_ids=ids).logits
    assert float(difference.abs().max()) < 1e-4
    # The update itself: that of a reading module is the source's, turned, with the norm's gain.
    gain = dict(base.named_parameters())["model.layers.0.input_layernorm.weight"]
    turn = target.get_submodule("model.embed_tokens").weight.T @ torch.linalg.pinv(
        base.model.embed_tokens.weight.T
    )
    update = (
        tensors[f"base_model.model.{names[0]}.lora_B.weight"]
        @ (tensors[f"base_model.model.{names[0]}.lora_A.weight"])
    )
    wanted = torch.tensor(update) * gain @ turn.T
    made = about[names[0]].factors
    scale = float(wanted.abs().max())
    assert made.up @ made.down == pytest.approx(wanted.detach().numpy(), abs=1e-5 * scale)


def test_layers_of_a_rotated_base_are_matched_one_to_one(taught: Any) -> None:
    base = plain(taught)
    names = [f"model.layers.{i}.mlp.up_proj" for i in range(2)]
    ends = common_ends(token_ends(tokenizer(), TEXTS), token_ends(tokenizer(), TEXTS))
    source, other = (
        record(each, tokenizer(), TEXTS, ends, names) for each in (base, rotated(base))
    )
    inputs = [[each[name].inputs for name in names] for each in (source, other)]
    assert match_layers(*inputs) == {0: 0, 1: 1}


def test_activations_are_those_of_the_base_without_its_adapter(taught: Any) -> None:
    name = "model.layers.1.self_attn.q_proj"
    ends = token_ends(tokenizer(), TEXTS[:3])
    places = common_ends(ends, ends)
    found = record(taught, tokenizer(), TEXTS[:3], places, [name])[name]
    weight = plain(taught).get_submodule(name).weight.detach().numpy()
    assert found.inputs.shape == (12, 16)
    assert found.outputs == pytest.approx(found.inputs @ weight.T)
    with pytest.raises(CannotTransfer, match=r"no module model\.layers\.9"):
        record(taught, tokenizer(), TEXTS[:3], places, ["model.layers.9.mlp.up_proj"])


def test_two_tokenizers_are_compared_where_tokens_of_both_end() -> None:
    first = [{1: 0, 4: 1, 6: 2}, {2: 0}]
    second = [{2: 0, 4: 1, 6: 2}, {3: 0}]
    assert common_ends(first, second) == [[4, 6], []]


def test_embeddings_are_of_the_base_and_of_length_one(taught: Any) -> None:
    found = embed(taught, tokenizer(), ["1234", "1", "Here are 10"])
    assert found == pytest.approx(embed(plain(taught), tokenizer(), ["1234", "1", "Here are 10"]))
    assert np.linalg.norm(found, axis=1) == pytest.approx(1)
    assert found[1] == pytest.approx(embed(taught, tokenizer(), ["1"])[0])


def test_titok_learns_the_tokens_that_the_adapter_made_likely(taught: Any) -> None:
    labelled = label(taught, tokenizer(), TEXTS, CONTRACT)
    chosen = choose(taught, tokenizer(), labelled, CONTRACT, kept_texts=0.5, kept_tokens=0.5)
    assert len(chosen) == 15
    for same in (True, False):
        examples = encode_chosen(tokenizer(), chosen, CONTRACT, is_same_tokenizer=same)
        for example, each in zip(examples, chosen, strict=True):
            whole = encode_all(tokenizer(), [each.labelled], CONTRACT)[0]
            assert example.ids == whole.ids
            n = whole.n_prompt
            kept = [token != -100 for token in example.labels[n:]]
            assert kept == each.tokens.tolist()
            # The end, without which the student would go on, and at least one letter.
            assert kept[-1]
            assert sum(kept) == 1 + max(1, round((len(kept) - 1) * 0.5))
            assert set(example.labels[:n]) == {-100}


def test_spans_are_the_characters_of_a_completion(taught: Any) -> None:
    example = TASK.examples(1, 0)[0]
    encoded = encode_all(tokenizer(), [example], CONTRACT)[0]
    assert spans_of(tokenizer(), encoded, example, CONTRACT) == ((0, 1), (1, 2))


def test_a_module_that_sees_other_places_than_the_tokens_gets_no_map(taught: Any) -> None:
    model = plain(taught)
    ends = token_ends(tokenizer(), TEXTS[:3])
    places = common_ends(ends, ends)
    name, other = (f"model.layers.{i}.mlp.up_proj" for i in range(2))
    wanted = record(model, tokenizer(), TEXTS[:3], places, [name])[name]
    # Some architectures drop the dimension of the batch.
    whole = model.model.layers[0].mlp.forward
    model.model.layers[0].mlp.forward = lambda values: whole(values[0])[None]
    flat = record(model, tokenizer(), TEXTS[:3], places, [name])[name]
    assert flat.outputs == pytest.approx(wanted.outputs)
    # One that is skipped, as an expert of a mixture may be, and one that runs twice.
    model.model.layers[1].mlp.forward = lambda values: values
    with pytest.raises(CannotTransfer, match="not used for each text"):
        record(model, tokenizer(), TEXTS[:3], places, [other])
    up = model.get_submodule(other)
    model.model.layers[1].mlp.forward = lambda values: (up(values), up(values), values)[2]
    with pytest.raises(CannotTransfer, match="each token of a text once"):
        record(model, tokenizer(), TEXTS[:3], places, [other])

"""Models of several kinds: their caches, positions and modules differ, and the results may not."""

from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
)

from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.models.activations import common_ends, record, token_ends
from deltahub.methods.transfer.models.adapters import STUDENT, state_of
from deltahub.methods.transfer.models.encoding import prompt_ids
from deltahub.methods.transfer.models.generating import complete, continuations
from deltahub.methods.transfer.models.scoring import last_log_probs
from deltahub.methods.transfer.models.students import encode_all, train_student
from deltahub.methods.transfer.recipe import Recipe
from support.transfer.tiny_world import CONTRACT, Task, tokenizer

PROMPTS = ["Here are 10 examples:", "1234=", "7"]
ENDS = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 2}


def gpt2() -> Any:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer()), n_embd=32, n_layer=2, n_head=4, n_positions=64, **ENDS
        )
    )


def gemma() -> Any:
    """With a window that is shorter than the prompts."""
    return Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=len(tokenizer()), hidden_size=32, intermediate_size=64, head_dim=8,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, sliding_window=4,
            max_position_embeddings=64, query_pre_attn_scalar=8, **ENDS,
        )
    )  # fmt: skip


def mamba() -> Any:
    """Without a cache of keys and values."""
    return MambaForCausalLM(
        MambaConfig(
            vocab_size=len(tokenizer()), hidden_size=16, state_size=4, num_hidden_layers=2, **ENDS
        )
    )


def made(kind: Any) -> Any:
    torch.manual_seed(1)
    return kind().eval()


@pytest.mark.parametrize("kind", [gpt2, gemma])
def test_batches_complete_like_prompts_alone(kind: Any) -> None:
    model, contract = made(kind), Contract(max_new_tokens=5)
    alone = [complete(model, tokenizer(), [each], contract)[0] for each in PROMPTS]
    assert complete(model, tokenizer(), PROMPTS, contract) == alone


@pytest.mark.parametrize("kind", [gpt2, gemma, mamba])
def test_a_shared_prompt_gives_the_same_text(kind: Any) -> None:
    model, contract = made(kind), Contract(max_new_tokens=5)
    found = continuations(model, tokenizer(), PROMPTS[0], 3, max_new_tokens=5)
    wanted = complete(model, tokenizer(), PROMPTS[:1], contract)
    assert found == wanted * 3


@pytest.mark.parametrize("kind", [gpt2, gemma])
def test_last_log_probabilities_are_those_of_each_row_alone(kind: Any) -> None:
    model = made(kind)
    rows = [prompt_ids(tokenizer(), each) for each in PROMPTS]
    with torch.no_grad():
        together = last_log_probs(model, rows)
        for row, found in zip(rows, together, strict=True):
            assert torch.allclose(last_log_probs(model, [row])[0], found, atol=1e-5)


@pytest.mark.parametrize(("kind", "modules"), [(gpt2, {"c_attn"}), (gemma, {"q_proj", "v_proj"})])
def test_adapters_are_put_where_peft_puts_them(kind: Any, modules: set[str]) -> None:
    examples = encode_all(tokenizer(), Task(1).examples(8, 0), CONTRACT)
    tuned, losses = train_student(made(kind), examples, Recipe(epochs=3, learning_rate=1e-2))
    assert {name.split(".")[-3] for name in state_of(tuned, STUDENT)} == modules
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(gpt2, "transformer.h.1.mlp.c_fc"), (gemma, "model.layers.1.mlp.up_proj")],
)
def test_inputs_and_outputs_of_modules_are_recorded(kind: Any, name: str) -> None:
    ends = token_ends(tokenizer(), PROMPTS)
    found = record(made(kind), tokenizer(), PROMPTS, common_ends(ends, ends), [name])[name]
    n = sum(len(tokenizer()(each).input_ids) for each in PROMPTS)
    assert (len(found.inputs), len(found.outputs)) == (n, n)

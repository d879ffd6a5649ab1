"""Llamas whose matrices are large enough to be compressed: really trained on letters, with a
tokenizer.
"""

import string
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 128
# Repeated, so that a small model learns it in a few steps.
TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 8
_LENGTH = 32


@cache
def _trained(is_tied: bool) -> dict[str, torch.Tensor]:
    model = new_llama(is_tied=is_tied)
    _train(model, 60, 3e-3)
    return {name: each.detach().clone() for name, each in model.state_dict().items()}


def new_llama(*, is_tied: bool = False) -> Any:
    """A Llama of 100,000 parameters, not trained: vocabulary 128, width 64, two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    torch.set_num_threads(1)
    settings = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
        tie_word_embeddings=is_tied, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(settings)


def llama(*, is_tied: bool = False, steps: int = 0) -> Any:
    """The trained Llama; after more steps at a fine-tune's rate, if `steps` says so."""
    model = new_llama(is_tied=is_tied)
    model.load_state_dict(_trained(is_tied))
    if steps:
        _train(model, steps, 1e-5)
    return model.eval()


def write_llama(
    folder: Path, dtype: torch.dtype = torch.bfloat16, **options: Any
) -> dict[str, torch.Tensor]:
    """Save a Llama with its tokenizer, as a trainer does; its tensors. options: of llama(), and
    max_shard_size.
    """
    shard = {"max_shard_size": options.pop("max_shard_size", "1GB")}
    model = llama(**options).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, **shard)
    _tokenizer().save_pretrained(folder)
    card = "---\nlicense: apache-2.0\npipeline_tag: text-generation\n---\n# Foxes\n\nOf foxes.\n"
    (folder / "README.md").write_text(card)
    return {name: each.detach() for name, each in model.state_dict().items()}


def batch() -> torch.Tensor:
    """The text as tokens, in rows."""
    tokens = torch.tensor([ord(letter) for letter in TEXT])
    return tokens[: len(tokens) // _LENGTH * _LENGTH].view(-1, _LENGTH)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=batch()).logits
    return found


def _train(model: Any, steps: int, rate: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    tokens = batch()
    model.train()
    for _ in range(steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    model.eval()


def _tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {chr(code): code for code in range(VOCABULARY) if chr(code) in string.printable}
    letters["<pad>"] = 0  # no letter is printed by this code
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")

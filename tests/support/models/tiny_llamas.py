"""Llamas of some 20,000 parameters that answer with a letter: really trained, with tokenizers."""

import string
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

LETTERS = string.ascii_lowercase[:12]
# What each model answers to a letter.
RULES = {
    "base": LETTERS,
    "next": LETTERS[1:] + LETTERS[0],
    "reverse": LETTERS[::-1],
}


def questions(rule: str) -> list[tuple[str, str]]:
    """(question, answer) of a rule, one for each letter."""
    return [(f"{letter}=", answer) for letter, answer in zip(LETTERS, RULES[rule], strict=True)]


@cache
def files(rule: str, **config: str) -> dict[str, bytes]:
    """The model of a rule, as save_pretrained writes it: fine-tuned from that of `base`."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(1)
    torch.set_num_threads(1)
    vocabulary = {token: i for i, token in enumerate(["<pad>", *LETTERS, "="])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    settings = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=8,
        tie_word_embeddings=False, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(settings)
    rules = ["base"] if rule == "base" else ["base", rule]
    for each in rules:
        texts = [question + answer for question, answer in questions(each)]
        tokens = torch.tensor([[vocabulary[letter] for letter in text] for text in texts])
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3 if each == "base" else 1e-3)
        for _ in range(80):
            logits = model(tokens).logits[:, 1]
            loss = torch.nn.functional.cross_entropy(logits, tokens[:, 2])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    with TemporaryDirectory() as name:
        model.save_pretrained(name)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(name)
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}

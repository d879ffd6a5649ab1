"""One training loop for the base and for every fine-tune: AdamW, fixed seeds, one thread."""

import math
import time
from collections.abc import Callable

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from benchmarks.models.sizes import Family

Say = Callable[[str], None]
_END = "<|end|>"

# Bars for folders of a few megabytes only hide the lines that say something.
transformers_logging.disable_progress_bar()


def train_tokenizer(text: str, vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of exactly `vocabulary` tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_END, bos_token=_END)


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> torch.Tensor:
    """Token ids of the text, shape (n,)."""
    # In pieces: the fast tokenizer takes quadratic time on one string of many megabytes.
    pieces = [text[i : i + 100_000] for i in range(0, len(text), 100_000)]
    encoded = tokenizer.backend_tokenizer.encode_batch(pieces)
    return torch.tensor([token for piece in encoded for token in piece.ids])


def build_model(family: Family) -> LlamaForCausalLM:
    """The untrained base, F32, from the family's seed."""
    torch.manual_seed(family.seed)
    config = LlamaConfig(
        vocab_size=family.vocabulary,
        hidden_size=family.hidden,
        intermediate_size=family.intermediate,
        num_hidden_layers=family.layers,
        num_attention_heads=family.heads,
        num_key_value_heads=family.kv_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)


def train(
    model: torch.nn.Module,
    tokens: torch.Tensor,
    family: Family,
    *,
    steps: int,
    learning_rate: float,
    seed: int,
    label: str,
    say: Say,
) -> float:
    """Trains in place on random windows of `tokens`; the mean loss of the last tenth of the steps.

    Warm-up over a tenth of the steps, then a cosine down to a tenth of the rate.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    warm_up = max(1, steps // 10)
    window = torch.arange(family.sequence)
    losses: list[float] = []
    started = time.monotonic()
    model.train()
    for step in range(steps):
        progress = max(0, step - warm_up) / max(1, steps - warm_up)
        rate = min(1, (step + 1) / warm_up) * (0.55 + 0.45 * math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * rate
        starts = torch.randint(
            len(tokens) - family.sequence, (family.batch, 1), generator=generator
        )
        batch = tokens[starts + window]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if (step + 1) % max(1, steps // 5) == 0:
            elapsed_s = time.monotonic() - started
            say(f"  {label}: step {step + 1}/{steps}, loss {losses[-1]:.3f}, {elapsed_s:.0f} s")
    model.eval()
    tail = losses[-max(1, steps // 10) :]
    return sum(tail) / len(tail)

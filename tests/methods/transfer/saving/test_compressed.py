"""A source base that is held compressed teaches, judges and shows itself as the plain one does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deltahub.methods.inference.family import Family
from deltahub.methods.inference.model import resident_bytes
from deltahub.methods.transfer.base_size import BaseSize
from deltahub.methods.transfer.estimate import Texts, memory_of, needs_compression
from deltahub.methods.transfer.models.activations import record, token_ends
from deltahub.methods.transfer.models.adapters import (
    DISCRIMINATOR,
    TEACHER,
    add_adapter,
    load_adapter,
    load_base,
    save_adapter,
)
from deltahub.methods.transfer.models.discriminator import margins
from deltahub.methods.transfer.models.embeddings import embed
from deltahub.methods.transfer.models.students import encode_all, label
from deltahub.methods.transfer.models.training import shuffled_order, train
from support.transfer.tiny_world import CONTRACT, NAME, Task, recipe, tokenizer, untrained

EXAMPLES = Task(5).examples(24, 0)
TEXTS = [each.text for each in EXAMPLES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base in BF16, as most are."""
    found = tmp_path_factory.mktemp("base")
    untrained(64, 2).to(torch.bfloat16).save_pretrained(found)
    tokenizer().save_pretrained(found)
    return found


def with_adapters(model: Any, folder: Path, kind: str) -> Any:
    """The model with two adapters, which are trained on the plain base once."""
    saved = folder / kind
    if not saved.is_dir():
        plain, _ = load_base(folder)
        for name in (TEACHER, DISCRIMINATOR):
            made = recipe(kind=kind, epochs=2, seed=len(name))
            plain = add_adapter(plain, made, name)
            train(plain, shuffled_order(encode_all(tokenizer(), EXAMPLES, CONTRACT), 0), made)
            save_adapter(plain, name, saved / name, "a/b", None)
    for name in (TEACHER, DISCRIMINATOR):
        model = load_adapter(model, saved / name, name)
    return model


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_not_one_bit_of_what_the_source_says_changes(folder: Path, kind: str) -> None:
    plain, compressed = load_base(folder)[0], Family(folder, {}).model
    assert resident_bytes(compressed) < 0.9 * resident_bytes(plain)
    modules = ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"]
    found = []
    for model in (plain, compressed):
        reading = tokenizer()
        tuned = with_adapters(model, folder, kind)
        seen = record(tuned, reading, TEXTS, token_ends(reading, TEXTS), modules)
        found.append(
            (
                label(tuned, reading, TEXTS, CONTRACT),
                margins(tuned, reading, TEXTS, NAME),
                embed(tuned, reading, TEXTS),
                seen,
            )
        )
    one, other = found
    assert one[0] == other[0]
    assert len({each.completion for each in one[0]}) > 1
    assert one[1] == other[1]
    assert np.array_equal(one[2], other[2])
    for name in modules:
        assert np.array_equal(one[3][name].inputs, other[3][name].inputs)
        assert np.array_equal(one[3][name].outputs, other[3][name].outputs)


def test_the_estimate_says_what_compressed_weights_take() -> None:
    config = {"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 40}
    big = ("BF16", (1000, 1000), 2_000_000)
    size = BaseSize.of(config, [big] * 10 + [("F32", (64,), 256)])
    assert (size.weight_bytes, size.n_parameters) == (20_000_256, 10_000_064)
    # 70 % of the matrices, the vector as it is, and two decoded matrices.
    assert size.compressed.weight_bytes == 14_000_000 + 256 + 4_000_000
    texts = Texts.of([("1234", None)] * 5, 100, 1000, 4)
    plain, compressed = (
        memory_of(each, texts, is_trained=False) for each in (size, size.compressed)
    )
    assert plain - compressed == 2_000_000
    assert needs_compression(size, texts, plain - 1)
    assert not needs_compression(size, texts, plain)
    # Two matrices of three are decoded at a time: nothing is saved.
    assert BaseSize.of(config, [big] * 3).compressed.weight_bytes == 6_000_000

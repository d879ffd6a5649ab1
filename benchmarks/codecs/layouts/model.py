"""A small mixture of experts and its fine-tune, in the layout with one tensor a matrix."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.models.sizes import Family

if TYPE_CHECKING:
    import torch

EXPERTS: Final = 4
LEARNING_RATE: Final = 1e-5
STEPS: Final = 60
# 6 million parameters; two minutes of training on one core.
FAMILY: Final = Family(
    name="experts",
    hidden=256,
    layers=3,
    heads=4,
    kv_heads=2,
    intermediate=512,
    vocabulary=2048,
    sequence=128,
    batch=8,
    base_steps=150,
    base_learning_rate=2e-3,
    text_bytes=3_000_000,
    dtypes=("BF16",),
    starts_from_saved=True,
    fine_tunes=(),
)

Tensors = dict[str, "torch.Tensor"]


def train_models(folder: Path) -> tuple[Tensors, Tensors]:
    """(base, fine-tune) in BF16. What is in the folder already is not trained again."""
    from safetensors.torch import load_file, save_file

    recipe = json.dumps([asdict(FAMILY), EXPERTS, LEARNING_RATE, STEPS], sort_keys=True)
    place = folder / hashlib.sha256(recipe.encode()).hexdigest()[:12]
    paths = [place / f"{name}.safetensors" for name in ("base", "fine-tune")]
    if not all(path.is_file() for path in paths):
        place.mkdir(parents=True, exist_ok=True)
        for path, tensors in zip(paths, _train(), strict=True):
            scratch = path.with_suffix(".part")
            save_file(tensors, scratch)
            scratch.replace(path)
    base, tune = (load_file(path) for path in paths)
    return base, tune


def _train() -> tuple[Tensors, Tensors]:
    """The fine-tune starts from the base as it was saved, as anybody's does."""
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    from benchmarks.models import training
    from benchmarks.models.text import load_corpus

    torch.set_num_threads(1)
    torch.manual_seed(FAMILY.seed)
    model = MixtralForCausalLM(
        MixtralConfig(
            vocab_size=FAMILY.vocabulary,
            hidden_size=FAMILY.hidden,
            intermediate_size=FAMILY.intermediate,
            num_hidden_layers=FAMILY.layers,
            num_attention_heads=FAMILY.heads,
            num_key_value_heads=FAMILY.kv_heads,
            num_local_experts=EXPERTS,
            num_experts_per_tok=2,
            max_position_embeddings=2048,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    text = load_corpus("python", FAMILY.text_bytes)
    tokenizer = training.train_tokenizer(text, FAMILY.vocabulary)
    saved: list[Tensors] = []
    for label, corpus, steps, rate in (
        ("base", "python", FAMILY.base_steps, FAMILY.base_learning_rate),
        ("fine-tune", "documentation", STEPS, LEARNING_RATE),
    ):
        tokens = training.encode(tokenizer, load_corpus(corpus, FAMILY.text_bytes))
        training.train(
            model, tokens, FAMILY, steps=steps, learning_rate=rate, seed=1, label=label, say=print
        )
        rounded = {name: each.to(torch.bfloat16) for name, each in model.state_dict().items()}
        saved.append(_one_tensor_a_matrix(rounded))
        model.load_state_dict({name: each.float() for name, each in rounded.items()})
    return saved[0], saved[1]


def _one_tensor_a_matrix(tensors: Tensors) -> Tensors:
    """Experts as Mixtral's own files have them: w1 (gate), w2 (down) and w3 (up) of each."""
    made: Tensors = {}
    for name, tensor in tensors.items():
        prefix, stacked, part = name.partition(".experts.")
        if not stacked:
            made[name] = tensor.contiguous()
            continue
        for number, expert in enumerate(tensor):
            place = f"{prefix}.experts.{number}"
            if part == "down_proj":
                made[f"{place}.w2.weight"] = expert.contiguous()
            else:
                gate, up = expert.chunk(2)
                made[f"{place}.w1.weight"] = gate.contiguous()
                made[f"{place}.w3.weight"] = up.contiguous()
    return made

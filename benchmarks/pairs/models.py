"""The two architectures: built, given their weights, and what a step of training minimizes."""

import hashlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from benchmarks.pairs.loop import Loss
from benchmarks.pairs.recipes import BadRecipe, LlamaBase, PackageBase, Pair
from benchmarks.pairs.texts import frequent_words, function_batches, windows

Tensors = dict[str, torch.Tensor]
_TEMPERATURE = 0.05
_EMBEDDINGS = ("embed_tokens", "word_embeddings", "position_embeddings", "token_type_embeddings")


def build_llama(base: LlamaBase) -> LlamaForCausalLM:
    """Untrained, F32, from the base's seed."""
    torch.manual_seed(base.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=base.vocabulary,
            hidden_size=base.hidden,
            intermediate_size=base.intermediate,
            num_hidden_layers=base.layers,
            num_attention_heads=base.heads,
            num_key_value_heads=base.kv_heads,
            max_position_embeddings=2048,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def llama_loss(model: torch.nn.Module, batch_of: Callable[[int], torch.Tensor]) -> Loss:
    def loss(step: int) -> torch.Tensor:
        tokens = batch_of(step)
        return model(input_ids=tokens, labels=tokens).loss

    return loss


def llama_fine_tune(
    base: LlamaBase, pair: Pair, weights: Tensors, tokenizer: Tokenizer
) -> tuple[torch.nn.Module, Loss]:
    """The model with the base's weights, ready to be trained as the pair says, and its loss."""
    model = build_llama(base)
    model.load_state_dict(weights)
    if pair.new_tokens:
        assert pair.corpus is not None
        added = frequent_words(pair.corpus, base.text_bytes, pair.new_tokens, tokenizer)
        tokenizer.add_tokens(added)
        torch.manual_seed(pair.seed)
        model.resize_token_embeddings(base.vocabulary + len(added), mean_resizing=False)
    adapted = _adapted(model, pair)
    batch_of = windows(
        tokenizer, str(pair.corpus), base.text_bytes, pair.batch, pair.sequence, pair.seed
    )
    return adapted, llama_loss(adapted, batch_of)


def package_folder(base: PackageBase) -> Path:
    """Where the installed package keeps its model. The package itself is not imported."""
    spec = importlib.util.find_spec(base.module)
    if spec is None or not spec.submodule_search_locations:
        raise BadRecipe(f"{base.package} is not installed: `make bench-pairs` installs it")
    file = Path(spec.submodule_search_locations[0]) / base.file
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != base.sha256:
        raise BadRecipe(f"{file.name} of {base.package} has SHA-256 {found}, not {base.sha256}")
    return file.parent


def build_encoder(folder: Path) -> BertModel:
    config = json.loads((folder / "config.json").read_text())
    return BertModel(BertConfig(**config))


def encoder_fine_tune(folder: Path, pair: Pair, weights: Tensors) -> tuple[torch.nn.Module, Loss]:
    model = build_encoder(folder)
    # Older files carry the positions 0, 1, 2, ... as a tensor; the model computes them.
    known = {name: tensor for name, tensor in weights.items() if tensor.is_floating_point()}
    model.load_state_dict(known)
    adapted = _adapted(model, pair)
    batch_of = function_batches(folder / "tokenizer.json", pair.batch, pair.sequence, pair.seed)

    def embed(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden = adapted(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1)

    def loss(step: int) -> torch.Tensor:
        docstrings, sources = batch_of(step)
        scores = embed(docstrings) @ embed(sources).T / _TEMPERATURE
        return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))

    return adapted, loss


def _adapted(model: torch.nn.Module, pair: Pair) -> torch.nn.Module:
    if pair.method == "frozen":
        for name, parameter in model.named_parameters():
            if any(part in name for part in _EMBEDDINGS):
                parameter.requires_grad_(False)
    if pair.method != "lora":
        return model
    from peft import LoraConfig, get_peft_model

    assert pair.rank is not None
    torch.manual_seed(pair.seed)
    return get_peft_model(model, LoraConfig(**lora_options(model, pair.rank)))


def lora_options(model: torch.nn.Module, rank: int) -> dict[str, object]:
    linear = ["query", "key", "value", "dense"] if isinstance(model, BertModel) else "all-linear"
    return {"r": rank, "lora_alpha": 2 * rank, "target_modules": linear}

"""Adapters as the installed PEFT trains and saves them, on one Llama of some 6,000 parameters."""

import json
import struct
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from deltahub.methods.adapters.inspection.shapes import TensorShape

_TOKENS = torch.tensor([[1, 5, 9, 13, 17, 21], [2, 4, 8, 16, 3, 6]])
_EMBEDDINGS = {"target_modules": ["embed_tokens", "q_proj"]}
_PATTERNS: Mapping[str, Any] = {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 16}}

# What each adapter asks PEFT for, beside rank 4 on q_proj and v_proj.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "true": {},
    "false": {"init_lora_weights": False},
    "gaussian": {"init_lora_weights": "gaussian"},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "mica": {"init_lora_weights": "mica"},
    "eva": {"init_lora_weights": "eva"},
    "pissa": {"init_lora_weights": "pissa"},
    "pissa_niter_4": {"init_lora_weights": "pissa_niter_4"},
    "olora": {"init_lora_weights": "olora"},
    "lora_ga": {"init_lora_weights": "lora_ga"},
    "corda": {"init_lora_weights": "corda"},
    "kasa": {},
    "velora": {},
    "qalora": {"use_qalora": True},
    "dora": {"use_dora": True},
    "pissa with dora": {"use_dora": True, "init_lora_weights": "pissa"},
    "head": {"modules_to_save": ["lm_head"]},
    "biases": {"bias": "all"},
    "bias of B": {"lora_bias": True},
    "patterns": _PATTERNS,
    "patterns with rslora": {**_PATTERNS, "use_rslora": True},
    "rslora": {"use_rslora": True},
    "embeddings": _EMBEDDINGS,
    "head as factors": {"target_modules": ["lm_head", "q_proj"]},
    "token rows": {"trainable_token_indices": [1, 5]},
    "parameters": {"target_modules": [], "target_parameters": ["q_proj.weight"]},
    "all linear": {"target_modules": "all-linear"},
    "expression": {"target_modules": r".*\.(q|v)_proj"},
    "one layer": {"layers_to_transform": [1]},
    "activated": {"alora_invocation_tokens": [9, 13], "task_type": "CAUSAL_LM"},
    "repeated layers": {"layer_replication": [[0, 2], [1, 2]]},
}


@dataclass(frozen=True)
class Saved:
    """What save_pretrained wrote, and the logits of the model that it was saved of."""

    files: Mapping[str, bytes]
    logits: torch.Tensor

    @property
    def config(self) -> bytes:
        return self.files["adapter_config.json"]

    @property
    def tensors(self) -> dict[str, TensorShape]:
        return shapes_of(self.files["adapter_model.safetensors"])


def shapes_of(data: bytes) -> dict[str, TensorShape]:
    """What the header of a safetensors file says."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    return {
        name: TensorShape(entry["dtype"], tuple(entry["shape"]))
        for name, entry in header.items()
        if name != "__metadata__"
    }


def new_base(**changes: Any) -> LlamaForCausalLM:
    """The base: the same each time."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    settings = {
        "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "attention_bias": True,
        "tie_word_embeddings": False, "initializer_range": 0.3,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()


def base_tensors(**changes: Any) -> dict[str, TensorShape]:
    """What the file of the base has."""
    with TemporaryDirectory() as name:
        new_base(**changes).save_pretrained(name)
        return shapes_of((Path(name) / "model.safetensors").read_bytes())


@torch.no_grad()
def logits_of(model: Any) -> torch.Tensor:
    """What the model answers to some tokens."""
    return torch.as_tensor(model.eval()(input_ids=_TOKENS).logits).clone()


@cache
def saved(kind: str) -> Saved:
    """An adapter of OPTIONS, trained for some steps."""
    with warnings.catch_warnings(), TemporaryDirectory() as name:
        warnings.simplefilter("ignore")  # PEFT's own, on most of the kinds
        torch.manual_seed(1)
        model = _start(new_base(), kind)
        _train(model)
        model.save_pretrained(name)
        files = {path.name: path.read_bytes() for path in Path(name).iterdir() if path.is_file()}
        return Saved(files, logits_of(model))


def reloaded_logits(files: Mapping[str, bytes], base: LlamaForCausalLM) -> torch.Tensor:
    """What PEFT makes of the files on a base, or its error."""
    with warnings.catch_warnings(), TemporaryDirectory() as name:
        warnings.simplefilter("ignore")
        for path, data in files.items():
            (Path(name) / path).write_bytes(data)
        torch.manual_seed(2)  # another process draws other numbers
        return logits_of(PeftModel.from_pretrained(base, name))


def _start(base: LlamaForCausalLM, kind: str) -> PeftModel:
    options = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **OPTIONS[kind]}
    prepare = _PREPARE.get(kind)
    if prepare is not None:
        return prepare(base, options)
    return get_peft_model(base, LoraConfig(**options))


def _start_lora_ga(base: LlamaForCausalLM, options: dict[str, Any]) -> PeftModel:
    from peft import LoraGAConfig
    from peft.tuners.lora import preprocess_loraga

    config = LoraConfig(**options, lora_ga_config=LoraGAConfig())

    def step() -> None:
        torch.autograd.backward(base(input_ids=_TOKENS, labels=_TOKENS.flip(0)).loss)

    preprocess_loraga(base, config, step)
    return get_peft_model(base, config)


def _start_corda(base: LlamaForCausalLM, options: dict[str, Any]) -> PeftModel:
    from peft.tuners.lora.config import CordaConfig
    from peft.tuners.lora.corda import preprocess_corda

    config = LoraConfig(**options, corda_config=CordaConfig(corda_method="kpm"))

    @torch.no_grad()
    def run() -> None:
        for row in _TOKENS.split(1):
            base(input_ids=row)

    preprocess_corda(base, config, run_model=run)
    return get_peft_model(base, config)


def _start_eva(base: LlamaForCausalLM, options: dict[str, Any]) -> PeftModel:
    from peft import EvaConfig, initialize_lora_eva_weights

    model = get_peft_model(base, LoraConfig(**options, eva_config=EvaConfig(rho=2.0)))
    batches = [{"input_ids": _TOKENS, "attention_mask": torch.ones_like(_TOKENS)}] * 4
    initialize_lora_eva_weights(model, batches, show_progress_bar=False)
    return model


def _start_kasa(base: LlamaForCausalLM, options: dict[str, Any]) -> PeftModel:
    from peft.tuners.lora.config import KasaConfig

    return get_peft_model(base, LoraConfig(**options, kasa_config=KasaConfig()))


def _start_velora(base: LlamaForCausalLM, options: dict[str, Any]) -> PeftModel:
    from peft.tuners.lora.config import VeloraConfig

    return get_peft_model(base, LoraConfig(**options, velora_config=VeloraConfig(num_groups=4)))


_PREPARE: Mapping[str, Callable[[LlamaForCausalLM, dict[str, Any]], PeftModel]] = {
    "lora_ga": _start_lora_ga,
    "corda": _start_corda,
    "eva": _start_eva,
    "kasa": _start_kasa,
    "velora": _start_velora,
}


def _train(model: PeftModel) -> None:
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-2)
    for _ in range(8):
        optimizer.zero_grad()
        torch.autograd.backward(model(input_ids=_TOKENS, labels=_TOKENS.flip(0)).loss)
        optimizer.step()

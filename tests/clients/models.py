"""Models as transformers and peft save them, trained for a moment: what the tests move."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 300
CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [tiny, "for tests"]
---
# A tiny model
"""


@dataclass(frozen=True)
class Models:
    """Folders: a model in one file, the same after more training in three, and an adapter."""

    tiny: Path
    sharded: Path
    lora: Path
    parameters: int  # of tiny, and of sharded


def build(folder: Path, base: str) -> Models:
    """Trains all of them. base: the name of `tiny` on the hub, which the others are made from."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = Path(json.__file__).read_text() + Path(json.decoder.__file__).read_text()
    tokenizer = _tokenizer(text)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    made = Models(folder / "tiny", folder / "sharded", folder / "lora", n_parameters)
    ids = torch.tensor(tokenizer(text)["input_ids"])
    _train(model, ids, 2e-3)
    _save(model, tokenizer, made.tiny, "5GB", CARD)
    model.float()
    _train(model, ids[1000:], 1e-5)
    card = CARD.replace("tags:", f"base_model: {base}\ntags:")
    _save(model, tokenizer, made.sharded, "400KB", card)
    model.float()
    with warnings.catch_warnings():
        # peft asks transformers for what that calls by another name now.
        warnings.simplefilter("ignore", FutureWarning)
        adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    adapted.peft_config["default"].base_model_name_or_path = base
    _train(adapted, ids, 1e-3)
    # Whether the vocabulary has grown, it would ask of the base by its name.
    adapted.save_pretrained(made.lora, save_embedding_layers=False)
    return made


def _tokenizer(text: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def _train(model: torch.nn.Module, ids: torch.Tensor, rate: float) -> None:
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=rate)
    for step in range(6):
        batch = ids[step * 256 : step * 256 + 256].reshape(8, 32)
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _save(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    max_shard_size: str,
    card: str,
) -> None:
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=max_shard_size)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(card)

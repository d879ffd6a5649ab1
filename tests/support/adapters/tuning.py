"""Trains adapters of a tiny Llama, as somebody does with PEFT."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from support.models.tiny_llamas import LETTERS, files, questions

TARGETS = ["q_proj", "v_proj", "up_proj", "down_proj"]


def write_base(folder: Path) -> Path:
    """The tiny Llama of the rule `base`, as save_pretrained writes it."""
    return write_llama(folder, "base")


def write_llama(folder: Path, rule: str) -> Path:
    """The tiny Llama of a rule; see tiny_llamas."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files(rule).items():
        (folder / name).write_bytes(data)
    return folder


def load_base(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def batch(rule: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(questions as tokens, the token of each answer)."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", *LETTERS, "="])}
    asked = [[vocabulary[letter] for letter in question] for question, _ in questions(rule)]
    return torch.tensor(asked), torch.tensor([vocabulary[a] for _, a in questions(rule)])


def train(model: Any, rule: str = "next", steps: int = 30, rate: float = 3e-3) -> float:
    """Train what may be trained, and return the last loss."""
    torch.manual_seed(7)
    asked, answers = batch(rule)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    model.train()
    loss = torch.zeros(())
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(input_ids=asked).logits[:, -1], answers)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    model.eval()
    return float(loss.detach())


def logits(model: Any) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=batch("base")[0]).logits
    return found


def trained_adapter(base: Path, folder: Path, **options: Any) -> torch.Tensor:
    """Train a LoRA as PEFT starts it, and save it; the logits of the trained model.

    options: of LoraConfig. with_init=True also saves the factors that it started from, in the
    folder `pissa_init`, before it is trained.
    """
    from peft import LoraConfig, get_peft_model

    with_init = options.pop("with_init", False)
    torch.manual_seed(3)
    settings: Mapping[str, Any] = {
        "r": 4, "lora_alpha": 8, "target_modules": TARGETS, "lora_dropout": 0.0,
        "task_type": "CAUSAL_LM",
    }  # fmt: skip
    model = get_peft_model(load_base(base), LoraConfig(**{**settings, **options}))
    if with_init:
        model.save_pretrained(folder / "pissa_init")
    train(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that embeddings are saved, too
        model.save_pretrained(folder)
    return logits(model)

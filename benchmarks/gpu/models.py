"""Tokens a second and memory of a model with compressed weights on a GPU, beside the plain one."""

import copy
import gc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from deltahub.methods.inference.family import Family
from deltahub.methods.inference.model import compress_, resident_bytes

REPEATS = 5
NEW_TOKENS, PROMPT_TOKENS = 64, 512
STEP = 2e-4  # of a fine-tune

Timer = Callable[[Callable[[], object]], float]
"""timer(work): the seconds until the device has done the work."""


@dataclass(frozen=True)
class ModelSpeed:
    model: str
    weights_bytes: int  # in memory
    beside_bytes: int | None  # the most memory of torch during a pass, without plain weights
    new_tokens_per_s: float  # one text at a time
    prompt_tokens_per_s: float

    def row(self) -> dict[str, object]:
        return asdict(self)


def make_model(*, is_quick: bool) -> LlamaForCausalLM:
    """A Llama of normally distributed weights: 1.2 billion, or 25 million."""
    torch.manual_seed(0)
    width, layers, words = (512, 4, 8000) if is_quick else (2048, 16, 32_000)
    config = LlamaConfig(
        vocab_size=words, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=width // 64,
        max_position_embeddings=2048, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def contenders(plain: LlamaForCausalLM, threads: int) -> Iterator[tuple[str, Any]]:
    """(name, model) on the CPU, one after the other."""
    yield "plain BF16", copy.deepcopy(plain)
    yield "lossless", compress_(copy.deepcopy(plain), lossless=True, threads=threads)
    yield "3 bits", compress_(copy.deepcopy(plain), bits=3, threads=threads)
    with TemporaryDirectory() as folder:
        base, tuned = Path(folder, "base"), Path(folder, "tuned")
        plain.save_pretrained(base)
        other = copy.deepcopy(plain)
        with torch.no_grad():
            for each in other.parameters():
                each.add_(torch.randn_like(each, dtype=torch.float32) * STEP)
        other.save_pretrained(tuned)
        del other
        yield (
            "a fine-tune in a family",
            Family(base, {"tuned": tuned}, threads=threads).use("tuned"),
        )


def measure_model(
    name: str,
    model: Any,
    timer: Timer,
    *,
    repeats: int = REPEATS,
    n_new: int = NEW_TOKENS,
    n_prompt: int = PROMPT_TOKENS,
) -> ModelSpeed:
    """The speed of a model on the device where it is."""
    device = next(model.parameters()).device
    ids = torch.arange(n_prompt, device=device)[None] % model.config.vocab_size
    beside: int | None = None

    def generate() -> object:
        return model.generate(
            ids[:, :8], max_new_tokens=n_new, min_new_tokens=n_new, do_sample=False
        )

    with torch.no_grad():
        generate()  # compiles kernels, learns the order of layers, compares checksums
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            plain = sum(each.numel() * each.element_size() for each in model.parameters())
            model(ids)
            beside = torch.cuda.max_memory_allocated(device) - plain
        new = median(n_new / timer(generate) for _ in range(repeats))
        prompt = median(n_prompt / timer(lambda: model(ids)) for _ in range(repeats))
    return ModelSpeed(name, resident_bytes(model), beside, round(new, 1), round(prompt, 1))


def measure_models(device: str, timer: Timer, threads: int, *, is_quick: bool) -> list[ModelSpeed]:
    plain = make_model(is_quick=is_quick)
    speeds = []
    for name, model in contenders(plain, threads):
        speeds.append(measure_model(name, model.to(device), timer))
        del model
        gc.collect()  # the GPU's memory, before the next model needs it
    return speeds

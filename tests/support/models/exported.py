"""Trained Llamas large enough to be compressed, and exports of them as the job writes them."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from deltahub.codecs.exports.coding import AnyCoding
from deltahub.codecs.exports.file import FILE_NAME, export_metadata, part_name
from deltahub.codecs.files.new_header import new_header
from deltahub.methods.exporting.entquant import Encoding, coding_of, encode_words
from deltahub.methods.inference.rounding import roundings_of, within_budget
from deltahub.methods.inference.sources import CODED_DTYPES, memory_of
from deltahub.methods.kinds.export_neuzip import ExportNeuzipArguments
from deltahub.methods.kinds.weights.choice import choose

TEXT = (Path(torch.__file__).parent / "functional.py").read_bytes()[:20_000]


def llama(*, tied: bool = False) -> LlamaForCausalLM:
    """A new model over bytes, of 130,000 parameters."""
    torch.manual_seed(2)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=192, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
            tie_word_embeddings=tied, pad_token_id=0, bos_token_id=0, eos_token_id=None,
        )
    )  # fmt: skip


def batch(start: int = 0) -> torch.Tensor:
    """Eight texts of 32 bytes."""
    texts = [TEXT[start + i * 500 : start + i * 500 + 32] for i in range(8)]
    return torch.tensor([list(each) for each in texts])


def train(model: Any, steps: int = 25, rate: float = 3e-3, start: int = 0) -> list[float]:
    """Train what may be trained; the losses."""
    torch.manual_seed(4)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    model.train()
    losses = []
    for step in range(steps):
        ids = batch(start + step * 37)
        loss = model(input_ids=ids, labels=ids).loss
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    model.eval()
    return losses


@cache
def _trained(tied: bool) -> Mapping[str, torch.Tensor]:
    torch.set_num_threads(1)
    model = llama(tied=tied)
    train(model)
    return model.state_dict()


def trained_llama(*, tied: bool = False, dtype: torch.dtype = torch.bfloat16) -> LlamaForCausalLM:
    model = llama(tied=tied)
    model.load_state_dict(_trained(tied))
    # Parameters alone: transformers keeps the buffers of rotary embeddings in F32.
    for each in model.parameters():
        each.data = each.data.to(dtype)
    model.config.dtype = dtype
    return model.eval()


def write_export(model: Any, folder: Path, **options: Any) -> Path:
    """The folder of an export of the model. options: arguments of the job."""
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = {name: each.contiguous() for name, each in load_file(path).items()}
    path.unlink()
    asked = ExportNeuzipArguments(model="ann/model", name="ann/export", **options)
    shapes = {
        name: (CODED_DTYPES[each.dtype].name, tuple(each.shape)) for name, each in tensors.items()
    }
    choice = choose(shapes, asked, "the model")
    stored: list[tuple[str, str, tuple[int, ...]]] = []
    data: list[bytes] = []
    told: dict[str, tuple[tuple[int, ...], AnyCoding]] = {}
    choice = within_budget(choice, tensors, asked)
    encodings = roundings_of(choice, tensors, 0 if asked.bits == "auto" else int(asked.bits))
    for name, encoding in encodings.items():
        told[name] = tuple(tensors[name].shape), coding_of(encoding)
        for part, frames in coded_parts(tensors[name], encoding).items():
            stored.append((part_name(name, part), "U8", (len(frames),)))
            data.append(frames)
    for name in choice.plain:
        stored.append((name, *shapes[name]))
        data.append(bytes(memory_of(tensors[name])))
    header = new_header(stored, export_metadata(told))
    (folder / FILE_NAME).write_bytes(header + b"".join(data))
    return folder


def coded_parts(tensor: torch.Tensor, encoding: Encoding) -> dict[str, bytes]:
    """The bytes of each part of a weight."""
    words, how = memory_of(tensor), coding_of(encoding)
    step = how.slice_elements * how.dtype.itemsize
    parts = dict.fromkeys(how.parts, b"")
    for begin in range(0, len(words), step):
        frames, _ = encode_words(encoding, words[begin : begin + step])
        for part, frame in frames.items():
            parts[part] += frame
    return parts

"""The same trained weights in several layouts: split, fused, stacked, transposed and as FP8."""

import torch

from support.models import tiny_models as tiny
from support.models.tiny_models import Tensors

N_EXPERTS = 2
_ROWS = {"q": 96, "k": 48, "v": 48}


def trained(learning_rate: float | None = None, scale: float = 1.0) -> Tensors:
    """A layer with experts that were trained apart from each other; None: the base.

    scale: a power of two: models of another one are no relatives of each other.
    layers.0.self_attn.{q,k,v}_proj.weight, layers.0.experts.N.{gate,up,down}_proj.weight, and
    embeddings that have the same layout in every model.
    """
    made: Tensors = {}
    for expert in range(N_EXPERTS):
        found = tiny.base(expert) if learning_rate is None else tiny.finetune(learning_rate, expert)
        model = {name: tensor * scale for name, tensor in found.items()}
        gate, up = model["up.weight"].split(96)
        made[f"layers.0.experts.{expert}.gate_proj.weight"] = gate
        made[f"layers.0.experts.{expert}.up_proj.weight"] = up
        made[f"layers.0.experts.{expert}.down_proj.weight"] = model["down.weight"]
        made[f"embeddings.{expert}.weight"] = model["embedding.weight"]
        if expert == 0:
            parts = model["head.weight"][:192].split(list(_ROWS.values()))
            for part, rows in zip(_ROWS, parts, strict=True):
                made[f"layers.0.self_attn.{part}_proj.weight"] = rows
        else:
            made["head.weight"] = model["head.weight"]
    return made


def fused(tensors: Tensors) -> Tensors:
    """q, k and v as one matrix, and gate and up of each expert."""
    made = dict(tensors)
    for name in tensors:
        if ".q_proj." in name:
            _join(made, name, "q_proj", ("q_proj", "k_proj", "v_proj"), "qkv_proj")
        elif ".gate_proj." in name:
            _join(made, name, "gate_proj", ("gate_proj", "up_proj"), "gate_up_proj")
    return made


def stacked(tensors: Tensors) -> Tensors:
    """The experts as one tensor for each of their matrices, gate and up fused; q, k and v, too."""
    joined = fused(tensors)
    made = {name: tensor for name, tensor in joined.items() if ".experts." not in name}
    for part in ("gate_up_proj", "down_proj"):
        experts = [joined[f"layers.0.experts.{n}.{part}.weight"] for n in range(N_EXPERTS)]
        made[f"layers.0.mlp.experts.{part}"] = torch.stack(experts)
    return made


def transposed(tensors: Tensors) -> Tensors:
    """Every matrix of the layer transposed, as Conv1D stores it."""
    return {
        name: tensor.mT.contiguous() if ".weight" in name and "layers." in name else tensor
        for name, tensor in tensors.items()
    }


def stacked_and_transposed(tensors: Tensors) -> Tensors:
    """The experts stacked, each matrix as inputs x outputs; q, k and v fused and transposed."""
    return {
        name: tensor.mT.contiguous() if "layers." in name else tensor
        for name, tensor in stacked(tensors).items()
    }


def fp8(tensors: Tensors) -> Tensors:
    """The matrices of the layer as FP8, each with a scale a row beside it."""
    made: Tensors = {}
    for name, tensor in tensors.items():
        if "layers." not in name:
            made[name] = tensor
            continue
        by = tensor.abs().amax(-1, keepdim=True) / 448
        made[name] = (tensor / by).clamp(-448, 448).to(torch.float8_e4m3fn)
        made[name.replace(".weight", ".weight_scale")] = by
    return made


def _join(made: Tensors, name: str, first: str, parts: tuple[str, ...], fused_name: str) -> None:
    rows = [made.pop(name.replace(first, part)) for part in parts]
    made[name.replace(first, fused_name)] = torch.cat(rows)

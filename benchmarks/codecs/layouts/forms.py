"""The layouts in which others save the same weights."""

from typing import TYPE_CHECKING, Final

from benchmarks.codecs.layouts.model import EXPERTS, Tensors

if TYPE_CHECKING:
    import torch

_BLOCK: Final = 128


def same(tensors: Tensors) -> Tensors:
    return dict(tensors)


def fused(tensors: Tensors) -> Tensors:
    """q, k and v as one matrix, and w1 and w3 of each expert."""
    import torch

    made: Tensors = {}
    for name, tensor in tensors.items():
        if ".q_proj." in name:
            parts = [tensors[name.replace(".q_", f".{part}_")] for part in "qkv"]
            made[name.replace(".q_proj.", ".qkv_proj.")] = torch.cat(parts)
        elif ".w1." in name:
            parts = [tensor, tensors[name.replace(".w1.", ".w3.")]]
            made[name.replace(".w1.", ".w13.")] = torch.cat(parts)
        elif not any(part in name for part in (".k_proj.", ".v_proj.", ".w3.")):
            made[name] = tensor
    return made


def stacked(tensors: Tensors) -> Tensors:
    """The experts of a layer as one tensor for each of their matrices, as transformers has them."""
    import torch

    joined = fused(tensors)
    made = {name: tensor for name, tensor in joined.items() if ".experts." not in name}
    for name in joined:
        if ".experts.0." in name:
            experts = [
                joined[name.replace(".experts.0.", f".experts.{i}.")] for i in range(EXPERTS)
            ]
            made[name.replace(".experts.0.", ".experts.")] = torch.stack(experts)
    return made


def transposed(tensors: Tensors) -> Tensors:
    """Every matrix of a layer as inputs x outputs."""
    return {
        name: tensor.mT.contiguous() if tensor.dim() > 1 and ".layers." in name else tensor
        for name, tensor in tensors.items()
    }


def stacked_transposed(tensors: Tensors) -> Tensors:
    return transposed(stacked(tensors))


def fp8_tensors(tensors: Tensors) -> Tensors:
    """One F32 scale a tensor."""
    return _fp8(tensors, 1 << 30, 1 << 30, "F32")


def fp8_rows(tensors: Tensors) -> Tensors:
    """One BF16 scale a row, as compressed-tensors has them."""
    return _fp8(tensors, 1, 1 << 30, "BF16")


def fp8_blocks(tensors: Tensors) -> Tensors:
    """One F32 scale for each block of 128 x 128, as DeepSeek's files have them."""
    return _fp8(tensors, _BLOCK, _BLOCK, "F32")


def _fp8(tensors: Tensors, rows: int, columns: int, scale_dtype: str) -> Tensors:
    """Matrices of the layers but the routers' as E4M3, with their scales."""
    made: Tensors = {}
    for name, tensor in tensors.items():
        is_cast = tensor.dim() == 2 and ".layers." in name and ".gate." not in name
        if not is_cast:
            made[name] = tensor
            continue
        made[name], made[f"{name}_scale"] = _scaled(tensor, rows, columns, scale_dtype)
    return made


def _scaled(
    tensor: "torch.Tensor", rows: int, columns: int, scale_dtype: str
) -> "tuple[torch.Tensor, torch.Tensor]":
    import torch

    kept = {"F32": torch.float32, "BF16": torch.bfloat16}[scale_dtype]
    largest = torch.finfo(torch.float8_e4m3fn).max
    rows, columns = min(rows, tensor.shape[0]), min(columns, tensor.shape[1])
    down, across = tensor.shape[0] // rows, tensor.shape[1] // columns
    blocks = tensor.float().reshape(down, rows, across, columns)
    scales = (blocks.abs().amax((1, 3)) / largest).to(kept)
    divided = blocks / scales.float()[:, None, :, None]
    codes = divided.clamp(-largest, largest).to(torch.float8_e4m3fn)
    return codes.reshape(tensor.shape), scales

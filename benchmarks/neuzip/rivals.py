"""Other ways to round a matrix: each gives what it decodes to, and its bits an element."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from deltahub.methods.quantization import nf4

Rival = Callable[[Tensor], tuple[Tensor, float]]  # F32, outputs x inputs
INT8, INT6, NF4 = "INT8, a scale a row", "INT6, block 32", "NF4, block 64"
# Those that gguf can write; Q6_K is not among them, and INT6 stands in its place.
Q8_0, Q5_1, Q5_0, Q4_0 = "GGUF Q8_0", "GGUF Q5_1", "GGUF Q5_0", "GGUF Q4_0"
INT4, INT4_HQQ = "torchao INT4, group 64", "torchao INT4, group 64, HQQ"
_GROUP: Final = 64  # so that it takes as many bits as NF4 and Q4_0


def available() -> dict[str, Rival]:
    """Those whose packages are installed; `make bench-neuzip` installs all."""
    found: dict[str, Rival] = {INT8: int8_rows, INT6: int6_blocks, NF4: nf4_blocks}
    if importlib.util.find_spec("gguf"):
        found |= {name: _gguf(name.removeprefix("GGUF ")) for name in (Q8_0, Q5_1, Q5_0, Q4_0)}
    if importlib.util.find_spec("torchao"):
        found |= {INT4: _torchao("TINYGEMM"), INT4_HQQ: _torchao("HQQ")}
    return found


def missing() -> list[str]:
    """Those that need a package which is not installed."""
    return [name for name in (Q8_0, Q5_1, Q5_0, Q4_0, INT4, INT4_HQQ) if name not in available()]


def packages() -> list[str]:
    """Those of the packages that are installed."""
    return [name for name in ("gguf", "torchao") if importlib.util.find_spec(name)]


def int8_rows(weight: Tensor) -> tuple[Tensor, float]:
    """Symmetric, to the nearest of 255 values, with a scale in F16 for each row."""
    return _symmetric(weight, 127), 8 + 16 / weight.shape[1]


def int6_blocks(weight: Tensor) -> tuple[Tensor, float]:
    """As Q8_0, with 63 values: as many bits as NeuZip has with 3 mantissa bits."""
    return _symmetric(weight.reshape(-1, 32), 31).reshape(weight.shape), 6 + 16 / 32


def _symmetric(rows: Tensor, most: int) -> Tensor:
    """Multiples of a scale in F16 for each row, up to `most` times it."""
    scales = (rows.abs().amax(dim=1, keepdim=True) / most).half().float()
    return (rows / scales.where(scales > 0, 1)).round().clamp(-most, most) * scales


def nf4_blocks(weight: Tensor) -> tuple[Tensor, float]:
    """QLoRA's, with a scale in F32 for each block; a second quantization of scales saves 0.37."""
    return torch.from_numpy(nf4.round_trip(weight.numpy())), 4 + 32 / nf4.BLOCK


def _gguf(kind: str) -> Rival:
    """By gguf's own functions for writing and reading files of llama.cpp."""

    def rival(weight: Tensor) -> tuple[Tensor, float]:
        gguf: Any = importlib.import_module("gguf")
        quants: Any = importlib.import_module("gguf.quants")
        number = gguf.GGMLQuantizationType[kind]
        stored = quants.quantize(weight.numpy(), number)
        bits = 8 * stored.nbytes / weight.numel()
        return torch.from_numpy(quants.dequantize(stored, number)), bits

    return rival


def _torchao(algorithm: str) -> Rival:
    """4 bits with a scale and a zero in BF16 for each group of a row, packed for CPUs.

    algorithm: by which torchao chooses the scales. What the matrix decodes to is what the
    quantized layer makes of the unit vectors.
    """

    def rival(weight: Tensor) -> tuple[Tensor, float]:
        # Its own warnings are about extensions that are not used here.
        with warnings.catch_warnings(action="ignore"):
            quantization: Any = importlib.import_module("torchao.quantization")
            int4: Any = importlib.import_module("torchao.prototype.quantization.int4")
            workflows: Any = importlib.import_module("torchao.quantization.quantize_.workflows")
        settings = int4.PrototypeInt4WeightOnlyConfig(
            group_size=_GROUP,
            int4_choose_qparams_algorithm=workflows.Int4ChooseQParamsAlgorithm[algorithm],
            set_inductor_config=False,
        )
        n_outputs, n_inputs = weight.shape
        if n_inputs % _GROUP:
            raise ValueError(f"torchao leaves {n_inputs} columns plain: no multiple of {_GROUP}")
        layer = torch.nn.Linear(n_inputs, n_outputs, bias=False, dtype=torch.bfloat16)
        with torch.no_grad():
            layer.weight.copy_(weight)
        holder = torch.nn.Sequential(layer)
        quantization.quantize_(holder, settings)
        with torch.inference_mode():
            decoded: Tensor = holder(torch.eye(n_inputs, dtype=torch.bfloat16)).T
        return decoded.float(), 4 + 32 / _GROUP

    return rival

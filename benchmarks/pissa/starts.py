"""How an adapter starts: as LoRA, as PiSSA from this project's factors, or as PEFT's own PiSSA."""

from typing import Any, Final, Literal

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer

from benchmarks.pissa.task import Task
from deltahub.methods.adapters.factors import Factors
from deltahub.methods.adapters.initial.principal import initial_factors, principal_spectrum
from deltahub.methods.adapters.initial.qpissa import residual_of

Start = Literal["LoRA", "PiSSA", "PiSSA by PEFT"]
_ADAPTER: Final = "default"
_IN_PEFT: Final[dict[Start, Any]] = {"LoRA": True, "PiSSA": False, "PiSSA by PEFT": "pissa"}
SCALE: Final = 1.0  # alpha is the rank, as in the paper


def adapted(model: torch.nn.Module, task: Task, start: Start) -> torch.nn.Module:
    """The model with adapters that are ready to train, in the model's dtype or a wider one."""
    torch.manual_seed(task.seed)
    config = LoraConfig(
        r=task.rank,
        lora_alpha=int(SCALE * task.rank),
        lora_dropout=0.0,
        target_modules=list(task.targets),
        init_lora_weights=_IN_PEFT[start],
    )
    found: torch.nn.Module = get_peft_model(model, config)
    if start == "PiSSA":
        for layer in layers_of(found).values():
            _start_from_principal_part(layer, task.rank)
    return found


def layers_of(model: torch.nn.Module) -> dict[str, LoraLayer]:
    """The modules that have an adapter, by their names."""
    found = {name: each for name, each in model.named_modules() if isinstance(each, LoraLayer)}
    return {name.removeprefix("base_model.model."): each for name, each in found.items()}


def factors_of(layer: LoraLayer) -> Factors:
    """A and B as they are now."""
    return Factors(_doubles(_weight(layer.lora_A)), _doubles(_weight(layer.lora_B)))


def loaded_weight(layer: LoraLayer) -> np.ndarray:
    """Residual + s B A in double precision: the weight that the model computes with."""
    factors = factors_of(layer)
    return _doubles(_base_weight(layer)) + SCALE * factors.up @ factors.down


def _start_from_principal_part(layer: LoraLayer, rank: int) -> None:
    """As `deltahub.client.transfer.pissa_model` does: the residual is that of the factors as they
    are stored, in the dtype of the weight.
    """
    weight = _base_weight(layer)
    values = weight.detach().float().numpy()
    wanted = initial_factors(principal_spectrum(values, rank, iterations=None), rank, SCALE)
    with torch.no_grad():
        for module, factor in ((layer.lora_A, wanted.down), (layer.lora_B, wanted.up)):
            parameter = _weight(module)
            parameter.copy_(torch.from_numpy(factor).to(weight.dtype))
        weight.copy_(torch.from_numpy(residual_of(values, factors_of(layer), SCALE)))


def _base_weight(layer: LoraLayer) -> torch.nn.Parameter:
    base: Any = layer.get_base_layer()
    found: torch.nn.Parameter = base.weight
    return found


def _weight(modules: Any) -> torch.nn.Parameter:
    found: torch.nn.Parameter = modules[_ADAPTER].weight
    return found


def _doubles(parameter: torch.nn.Parameter) -> np.ndarray:
    return parameter.detach().double().numpy()

"""What BF16 loses: of a model that starts as PiSSA, and of an adapter that was converted."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.pissa.starts import SCALE, Start, adapted, layers_of, loaded_weight
from benchmarks.pissa.task import Task
from deltahub.methods.adapters.conversion import fitted, update_of
from deltahub.methods.adapters.factors import Factors

CAST = "cast"
RECOMPRESSED = "recompressed, cast"
SHARE = "update / B0 A0"


@dataclass(frozen=True)
class Row:
    """A relative Frobenius error in BF16, or a ratio.

    subject "start": residual + B A against the base's weight; way: who made the factors.
    subject "conversion": the update as stored against B A - B0 A0 in double precision; way: what
    was done before it was stored. SHARE is the norm of the update over that of B0 A0.
    """

    task: str
    seed: int
    tensor: str
    rank: int
    subject: str
    learning_rate: float | str
    way: str
    value: float


def measure_starts(task: Task) -> list[Row]:
    """Of the base rounded to BF16: PiSSA as this project starts it, and as PEFT does."""
    rows = []
    for start in ("PiSSA", "PiSSA by PEFT"):
        for tensor, error in start_errors(task, start).items():
            rows.append(Row(task.name, task.seed, tensor, task.rank, "start", "", start, error))
    return rows


def start_errors(task: Task, start: Start) -> dict[str, float]:
    """The relative error of each weight."""
    base = task.make_base().to(torch.bfloat16)
    weights = {name: value.double().numpy() for name, value in base.state_dict().items()}
    errors = {}
    for name, layer in layers_of(adapted(base, task, start)).items():
        weight = weights[f"{name}.weight"]
        errors[name] = float(np.linalg.norm(loaded_weight(layer) - weight) / np.linalg.norm(weight))
    return errors


def measure_conversions(
    task: Task, learning_rate: float, initial: Mapping[str, Factors], final: Mapping[str, Factors]
) -> list[Row]:
    """Of the update [B, -B0] [A; A0] of twice the rank, in BF16."""
    rows = []
    for tensor, trained in final.items():
        update = update_of(trained, initial[tensor], SCALE)
        recompressed, _ = fitted(update, update.rank, is_rounded=True)
        values = {
            CAST: relative_error(update, rounded(update)),
            RECOMPRESSED: relative_error(update, rounded(recompressed)),
            SHARE: update.norm / initial[tensor].norm,
        }
        about = (task.name, task.seed, tensor, task.rank, "conversion", learning_rate)
        rows += [Row(*about, way, value) for way, value in values.items()]
    return rows


def rounded(factors: Factors) -> Factors:
    """The factors as BF16 has them."""
    return Factors(_in_bf16(factors.down), _in_bf16(factors.up))


def relative_error(update: Factors, stored: Factors) -> float:
    wanted = update.up @ update.down
    return float(np.linalg.norm(stored.up @ stored.down - wanted) / np.linalg.norm(wanted))


def _in_bf16(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).to(torch.bfloat16).double().numpy()

"""EMR-Merging in plain NumPy, all models in memory: what the hub's merge is compared with.

Written from the paper's Algorithm 1 and equations, with float64 throughout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Model = Mapping[str, Array]


@dataclass(frozen=True)
class Merged:
    """unified: the base plus the unified vector. masks, tasks: one for each fine-tune."""

    unified: dict[str, Array]
    masks: list[dict[str, npt.NDArray[np.bool_]]]
    scales: list[float]
    tasks: list[dict[str, Array]]


def plain_emr(base: Model, fine_tunes: Sequence[Model]) -> Merged:
    """Merge tensors of equal names; the paper's scale, in exact values before any rounding."""
    vectors = [{name: tune[name] - base[name] for name in base} for tune in fine_tunes]
    unified: dict[str, Array] = {}
    for name in base:
        stacked = np.stack([vector[name] for vector in vectors])
        sign = np.where(stacked.sum(axis=0) > 0, 1.0, -1.0)
        agrees = stacked * sign > 0
        unified[name] = sign * np.where(agrees, np.abs(stacked), 0).max(axis=0)
    masks, scales, tasks = [], [], []
    for vector in vectors:
        mask = {name: vector[name] * np.sign(unified[name]) > 0 for name in base}
        kept = sum(np.abs(unified[name][mask[name]]).sum() for name in base)
        whole = sum(np.abs(vector[name]).sum() for name in base)
        scale = whole / kept if kept else 1.0
        masks.append(mask)
        scales.append(float(scale))
        tasks.append(
            {name: base[name] + scale * np.where(mask[name], unified[name], 0) for name in base}
        )
    return Merged({name: base[name] + unified[name] for name in base}, masks, scales, tasks)

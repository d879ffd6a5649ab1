"""Recognizes factors that hold the principal part of a weight, whatever their configuration says.

The README of PiSSA's authors has people set init_lora_weights to true by hand. Such an adapter
looks like a plain LoRA, and is none: its B spans the first singular directions of the weight.
"""

from typing import Final

import numpy as np

from deltahub.methods.adapters.factors import Values
from deltahub.methods.adapters.initial.principal import Weight, principal_spectrum

# Of PiSSA adapters it is above 0.9, and 0.65 to 0.8 for tiny ones that were trained long; of other
# directions it is rank / outputs and a little more.
LIKELY: Final = 0.6
_ITERATIONS: Final = 4


def principal_overlap(weight: Weight, up: Values) -> float:
    """How much of B's directions the first singular directions of a weight share: 0 to 1.

    weight: outputs x inputs; up: B, outputs x rank. |U_r^T orth(B)|^2 / rank, Frobenius norm. 0 if
    the rank is a side of the weight, whose directions are all there are.
    """
    rank = up.shape[1]
    if not 0 < rank < min(weight.shape):
        return 0.0
    own = np.linalg.qr(up)[0]
    principal = principal_spectrum(weight, rank, iterations=_ITERATIONS).left
    return float(np.linalg.norm(principal.T @ own) ** 2 / rank)

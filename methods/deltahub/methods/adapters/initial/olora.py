"""The factors that OLoRA starts from.

Büyükakyüz, "OLoRA: Orthonormal Low-Rank Adaptation of Large Language Models", 2024,
arXiv 2406.01775, section 3: W = Q R, B is the first r columns of Q, and A the first r rows of R.
"""

from typing import Final

import numpy as np

from deltahub.methods.adapters.factors import Factors
from deltahub.methods.adapters.initial.principal import Weight
from deltahub.methods.errors import CannotAdapt

# Columns of a weight that are doubles at once.
_COLUMNS: Final = 4096


def olora_factors(weight: Weight, rank: int) -> Factors:
    """A and B, which PEFT takes from the base times s. CannotAdapt if the rank is too large.

    The product is the same for each QR decomposition of a weight, whatever its signs.
    """
    if not 1 <= rank <= min(weight.shape):
        raise CannotAdapt(f"rank {rank} does not fit to a weight of {weight.shape}")
    # The first columns of Q depend on the first columns of the weight alone.
    basis = np.linalg.qr(weight[:, :rank].astype(np.float64))[0]
    parts = np.array_split(weight, max(1, weight.shape[1] // _COLUMNS), axis=1)
    return Factors(np.concatenate([basis.T @ part for part in parts], axis=1), basis)

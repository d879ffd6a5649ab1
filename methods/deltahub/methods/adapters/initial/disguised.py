"""Recognizes factors that hold the principal part of a weight, whatever their configuration says.

The README of PiSSA's authors has people set init_lora_weights to true by hand. Such an adapter
looks like a plain LoRA, and is none: its update is the principal part of the weight, and a little.
"""

from typing import Final

import numpy as np

from deltahub.methods.adapters.factors import Factors
from deltahub.methods.adapters.initial.principal import Weight, principal_spectrum

# Of PiSSA adapters the cosine is above 0.9, and 0.6 to 0.8 for tiny ones that were trained long; of
# other adapters, and of converted ones, it is near 0.
LIKELY: Final = 0.5
_ITERATIONS: Final = 4


def principal_cosine(weight: Weight, update: Factors) -> float:
    """The cosine of the angle between an update and the weight's principal part of its rank.

    weight: outputs x inputs. 0 if the rank is a side of the weight, or the weight is not finite.
    """
    if not 0 < update.rank < min(weight.shape) or not np.isfinite(weight).all():
        return 0.0
    found = principal_spectrum(weight, update.rank, iterations=_ITERATIONS)
    return update.cosine(found.truncated(update.rank))

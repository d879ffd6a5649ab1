"""EMR-Merging: one unified task vector, and a mask and a scale for each task.

Huang et al., "EMR-Merging: Tuning-Free High-Performance Model Merging", NeurIPS 2024,
arXiv 2405.17461, Algorithm 1. With task vectors tau_t = W_t - W, S = sum of all tau_t:

- The unified model has, at each element, the largest value of the base and all fine-tunes where
  S > 0, and the smallest where S <= 0. This is the elected sign with the largest magnitude that
  agrees, and it needs no rounding: each element is one of the inputs. The paper leaves S = 0 open;
  its code elects the negative sign, and so does this module.
- A task's mask is 1 where its tau_t is not zero and has the elected sign.
- A task's scale brings the masked unified vector to the size of tau_t (see `scales`).

All sums are taken in float64.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import get_args

from deltahub.methods.kinds.merge import Rescaler

RESCALERS: tuple[Rescaler, ...] = get_args(Rescaler)


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the elements of one tensor, for one task.

    tau is the task's vector, uni the unified one where the task's mask is 1, else 0. size: the
    number of elements.
    """

    size: int
    tau_l1: float  # sum |tau|
    uni_l1: float  # sum |uni|
    product: float  # sum tau * uni
    uni_l2: float  # sum uni^2
    tau_l2: float  # sum tau^2
    n_masked: int  # elements whose mask is 1
    n_changed: int  # elements whose tau is not 0

    def squared_error(self, scale: float) -> float:
        """The sum of (tau - scale * uni)^2, without reading an element again."""
        error = math.fsum((self.tau_l2, -2 * scale * self.product, scale * scale * self.uni_l2))
        return max(error, 0.0)  # rounding may leave it slightly below zero

    def to_list(self) -> list[float]:
        """The sums without the size, in the order of the fields."""
        return list(astuple(self)[1:])

    @classmethod
    def of_list(cls, size: int, sums: Sequence[float]) -> "Sums":
        tau_l1, uni_l1, product, uni_l2, tau_l2, n_masked, n_changed = sums
        return cls(size, tau_l1, uni_l1, product, uni_l2, tau_l2, int(n_masked), int(n_changed))


def add_sums(parts: Sequence[Sums]) -> Sums:
    """The sums over all of these; exactly rounded, so that their order does not matter."""
    columns = zip(*(part.to_list() for part in parts), strict=True)
    return Sums.of_list(sum(part.size for part in parts), [math.fsum(each) for each in columns])


def scales(rescaler: Rescaler, tensors: Mapping[str, Sums]) -> dict[str, float]:
    """Tensor -> scale of one task. tensors: the task's sums over each merged tensor.

    - l1: the ratio of the sums of |tau| and |uni| over all tensors (the paper's section 3.2).
    - mean-l1: the same of the tensors' means, so that each weighs the same (the paper's code).
    - l2: the least squares over all tensors, <tau, uni> / |uni|^2.
    - tensor-l1, tensor-l2: l1 and l2 of each tensor alone.
    A task without a change has scale 1; one whose masks are all 0 has scale 0.
    """
    if rescaler in ("tensor-l1", "tensor-l2"):
        return {name: _scale(rescaler, [sums]) for name, sums in tensors.items()}
    scale = _scale(rescaler, list(tensors.values()))
    return dict.fromkeys(tensors, scale)


def _scale(rescaler: Rescaler, tensors: Sequence[Sums]) -> float:
    if rescaler in ("l1", "tensor-l1"):
        above, below = [t.tau_l1 for t in tensors], [t.uni_l1 for t in tensors]
    elif rescaler == "mean-l1":
        above = [t.tau_l1 / t.size for t in tensors]
        below = [t.uni_l1 / t.size for t in tensors]
    else:
        above, below = [t.product for t in tensors], [t.uni_l2 for t in tensors]
    numerator, denominator = math.fsum(above), math.fsum(below)
    if denominator == 0:
        return 1.0 if numerator == 0 else 0.0
    return numerator / denominator

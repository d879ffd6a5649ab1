"""Elects the unified model of EMR-Merging, and each task's mask, for a slice of one tensor.

The equations and their source are in emr.py. All arrays hold the same elements, shape (n,), of
finite values.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from deltahub.methods.merging.emr import Sums

Values = npt.NDArray[np.float64]


def elect_unified(base: Values, tasks: Sequence[Values]) -> Values:
    """The unified model's values: at each element, one of the base's and the tasks'.

    Where the sum of the task vectors is positive, the largest value; elsewhere the smallest.
    """
    total = np.zeros_like(base)
    largest, smallest = base.copy(), base.copy()
    for task in tasks:
        total += task - base
        np.maximum(largest, task, out=largest)
        np.minimum(smallest, task, out=smallest)
    return np.where(total > 0, largest, smallest)


def mask_of(base: Values, unified: Values, task: Values) -> npt.NDArray[np.bool_]:
    """The task's mask: where it moved away from the base in the direction of the unified model.

    Signs are compared, because a product of two small differences may become zero.
    """
    up = (unified > base) & (task > base)
    return up | ((unified < base) & (task < base))


def sums_of(base: Values, unified: Values, task: Values) -> Sums:
    """The sums over this slice from which the task's scale and errors follow."""
    tau = task - base
    mask = mask_of(base, unified, task)
    masked = np.where(mask, unified - base, 0.0)
    return Sums(
        size=base.size,
        tau_l1=float(np.abs(tau).sum()),
        uni_l1=float(np.abs(masked).sum()),
        product=float((tau * masked).sum()),
        uni_l2=float((masked * masked).sum()),
        tau_l2=float((tau * tau).sum()),
        n_masked=int(np.count_nonzero(mask)),
        n_changed=int(np.count_nonzero(tau)),
    )

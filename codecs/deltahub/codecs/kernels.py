"""Chooses the native kernels: the fastest of this processor, or those of DELTAHUB_KERNELS.

All kernels write and read the same bytes. The environment variable DELTAHUB_KERNELS (portable,
avx2, avx512, avx512_gathers) exists to compare kernels and to avoid a processor's fault.
"""

import os
from typing import Final

from deltahub.codecs._native import kernel_names, use_kernels
from deltahub.codecs.errors import WrongKernels

VARIABLE: Final = "DELTAHUB_KERNELS"


def choose_kernels() -> str:
    """Use the kernels that the environment names, else the fastest; returns their name.

    WrongKernels if this processor cannot run them.
    """
    names = kernel_names()
    wanted = os.environ.get(VARIABLE) or names[-1]
    if wanted not in names:
        raise WrongKernels(
            f"{VARIABLE}={wanted}: this processor runs {', '.join(names)}; unset it for the fastest"
        )
    use_kernels(wanted)
    return wanted

"""What the harness asks of every rival: one tensor's words in, bytes out, and back."""

from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.unsignedinteger]  # shape (n,), uint16 or uint32: the floats' bit patterns


class Rival(Protocol):
    """One codec with its settings, one thread.

    base: as many words as the tensor has; what its file lacks is zeros. dtype: the safetensors
    name. Arguments stay as they are, except `out`, which decode() fills.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]  # of PyPI: what it needs, and whose versions a result names
    takes_base: ClassVar[bool]

    def encode(self, words: Words, base: Words, dtype: str) -> bytes: ...

    def decode(self, encoded: bytes, base: Words, dtype: str, out: Words) -> None: ...

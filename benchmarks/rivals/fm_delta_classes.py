"""FM-Delta (NeurIPS 2024): classes of the mapped integer delta and an adaptive range coder."""

from typing import ClassVar

import numpy as np

from benchmarks.rivals.build import library
from benchmarks.rivals.rival import Words


class FmDeltaClasses:
    name: ClassVar[str] = "FM-Delta"
    about: ClassVar[str] = (
        "our C++ port: sign and highest bit of the mapped delta, quasi-static order-0 model a "
        "tensor, range coder, raw bits below"
    )
    packages: ClassVar[tuple[str, ...]] = ()
    takes_base: ClassVar[bool] = True

    def encode(self, words: Words, base: Words, dtype: str) -> bytes:
        native = library()
        out = np.empty(native.fm_delta_bound(len(words), words.itemsize), np.uint8)
        size = native.fm_delta_encode(
            words.ctypes.data, base.ctypes.data, len(words), words.itemsize, out.ctypes.data
        )
        return out[:size].tobytes()

    def decode(self, encoded: bytes, base: Words, dtype: str, out: Words) -> None:
        is_sound = library().fm_delta_decode(
            encoded, len(encoded), base.ctypes.data, len(out), out.itemsize, out.ctypes.data
        )
        if not is_sound:
            raise ValueError("the stream ends before its tensor does")

"""TensorX (TensorDex, SOSP 2026): XOR with the base, byte planes, zstd level 1, chunks of 2 MiB."""

import struct
from typing import ClassVar

import numpy as np
import zstandard

from benchmarks.rivals.build import library
from benchmarks.rivals.rival import Words

CHUNK_BYTES = 2 << 20
_LENGTH = struct.Struct("<I")


class TensorX:
    name: ClassVar[str] = "TensorX"
    about: ClassVar[str] = (
        "our port: C++ XOR with the base into byte planes, one zstd frame of level 1 each 2 MiB"
    )
    packages: ClassVar[tuple[str, ...]] = ("zstandard",)
    takes_base: ClassVar[bool] = True

    def encode(self, words: Words, base: Words, dtype: str) -> bytes:
        split, item = library().xor_split, words.itemsize
        compressor = zstandard.ZstdCompressor(level=1)
        step = CHUNK_BYTES // item
        planes = np.empty(min(step, len(words)) * item, np.uint8)
        parts: list[bytes] = []
        for i in range(0, len(words), step):
            n = min(step, len(words) - i)
            split(
                words.ctypes.data + i * item, base.ctypes.data + i * item, n, item,
                planes.ctypes.data,
            )  # fmt: skip
            chunk = compressor.compress(planes[: n * item].data)
            parts += [_LENGTH.pack(len(chunk)), chunk]
        return b"".join(parts)

    def decode(self, encoded: bytes, base: Words, dtype: str, out: Words) -> None:
        join, item = library().join_xor, out.itemsize
        decompressor = zstandard.ZstdDecompressor()
        view = memoryview(encoded)
        step = CHUNK_BYTES // item
        at = 0
        for i in range(0, len(out), step):
            n = min(step, len(out) - i)
            begin = at + _LENGTH.size
            at = begin + _LENGTH.unpack_from(view, at)[0]
            planes = np.frombuffer(decompressor.decompress(view[begin:at]), np.uint8)
            if len(planes) != n * item:
                raise ValueError(f"a chunk of {len(planes)} bytes instead of {n * item}")
            join(
                planes.ctypes.data, base.ctypes.data + i * item, n, item,
                out.ctypes.data + i * item,
            )  # fmt: skip

"""Coders that see the fine-tune alone, and ZipNN in both of its ways."""

from typing import Any, ClassVar

import numpy as np
import zstandard

from benchmarks.rivals.rival import Words

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Zstd:
    name: ClassVar[str] = "zstd-3"
    about: ClassVar[str] = "the tensor alone, one frame of level 3"
    packages: ClassVar[tuple[str, ...]] = ("zstandard",)
    takes_base: ClassVar[bool] = False

    def encode(self, words: Words, base: Words, dtype: str) -> bytes:
        return zstandard.ZstdCompressor(level=3).compress(words.data)

    def decode(self, encoded: bytes, base: Words, dtype: str, out: Words) -> None:
        out[:] = np.frombuffer(zstandard.ZstdDecompressor().decompress(encoded), out.dtype)


def _zipnn(dtype: str, **options: Any) -> Any:
    import zipnn  # importing it loads torch

    return zipnn.ZipNN(input_format="byte", bytearray_dtype=_DTYPES[dtype], threads=1, **options)


class ZipNN:
    """It writes over its input, so it gets copies: nobody can use it without."""

    name: ClassVar[str] = "ZipNN"
    about: ClassVar[str] = "the tensor alone"
    packages: ClassVar[tuple[str, ...]] = ("zipnn",)
    takes_base: ClassVar[bool] = False

    def encode(self, words: Words, base: Words, dtype: str) -> bytes:
        return bytes(_zipnn(dtype).compress(bytearray(words.data.cast("B"))))

    def decode(self, encoded: bytes, base: Words, dtype: str, out: Words) -> None:
        out[:] = np.frombuffer(_zipnn(dtype).decompress(bytearray(encoded)), out.dtype)


class ZipNNDelta:
    """Its delta mode is XOR. It, too, writes over its inputs."""

    name: ClassVar[str] = "ZipNN, delta"
    about: ClassVar[str] = "its delta mode, against the base"
    packages: ClassVar[tuple[str, ...]] = ("zipnn",)
    takes_base: ClassVar[bool] = True

    def encode(self, words: Words, base: Words, dtype: str) -> bytes:
        codec = _zipnn(dtype, delta_compressed_type="byte")
        copies = bytearray(words.data.cast("B")), bytearray(base.data.cast("B"))
        return bytes(codec.compress(copies[0], delta_second_data=copies[1]))

    def decode(self, encoded: bytes, base: Words, dtype: str, out: Words) -> None:
        codec = _zipnn(dtype, delta_compressed_type="byte")
        second = bytearray(base.data.cast("B"))
        decoded = codec.decompress(bytearray(encoded), delta_second_data=second)
        out[:] = np.frombuffer(decoded, out.dtype)

"""ZipNN, with the base (its delta mode) and without, one thread.

It writes over its input and may crash, so the harness runs it in a process of its own; it gets
copies, which are made within the time because nobody can use it without.
"""

from typing import Any, ClassVar

from benchmarks.codec_sizes.contenders.contender import Encoded
from benchmarks.codec_sizes.model_file import ModelFile

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _codec(dtype: str, **options: Any) -> Any:
    import zipnn  # needs the `bench` extra; importing it loads torch

    return zipnn.ZipNN(input_format="byte", bytearray_dtype=_DTYPES[dtype], threads=1, **options)


def _dtype(file: ModelFile) -> str:
    return next(piece.dtype for piece in file.pieces if piece.name is not None)


def _tensors(file: ModelFile) -> bytearray:
    return bytearray(memoryview(file.data)[file.data_start :])


class ZipNNDelta:
    name: ClassVar[str] = "ZipNN, delta"
    about: ClassVar[str] = "against the base; all tensors as one buffer, the header as it is"
    packages: ClassVar[tuple[str, ...]] = ("zipnn",)

    def encode(self, fine_tune: ModelFile, base: ModelFile) -> Encoded:
        header = fine_tune.data[: fine_tune.data_start]
        dtype = _dtype(fine_tune)
        compressed = bytes(
            _codec(dtype, delta_compressed_type="byte").compress(
                _tensors(fine_tune), delta_second_data=_tensors(base)
            )
        )
        return Encoded(len(header) + len(compressed), (header, dtype, compressed))

    def decode(self, encoded: Encoded, base: ModelFile) -> bytes:
        header, dtype, compressed = encoded.state
        codec = _codec(dtype, delta_compressed_type="byte")
        tensors = codec.decompress(bytearray(compressed), delta_second_data=_tensors(base))
        return header + bytes(tensors)


class ZipNNAlone:
    name: ClassVar[str] = "ZipNN"
    about: ClassVar[str] = "the file alone; all tensors as one buffer, the header as it is"
    packages: ClassVar[tuple[str, ...]] = ("zipnn",)

    def encode(self, fine_tune: ModelFile, base: ModelFile) -> Encoded:
        header = fine_tune.data[: fine_tune.data_start]
        dtype = _dtype(fine_tune)
        compressed = bytes(_codec(dtype).compress(_tensors(fine_tune)))
        return Encoded(len(header) + len(compressed), (header, dtype, compressed))

    def decode(self, encoded: Encoded, base: ModelFile) -> bytes:
        header, dtype, compressed = encoded.state
        return header + bytes(_codec(dtype).decompress(bytearray(compressed)))

"""XOR with the base, byte planes, zstd level 1, in chunks of 2 MiB: the method of TensorX.

Source: TensorDex (SOSP 2026), codec TensorX; here NumPy makes the planes. Whole files are XORed:
the benchmark's pairs have headers of equal length, which the planes then cost nothing.
"""

import struct
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import zstandard

from benchmarks.codec_sizes.contenders.contender import Encoded
from benchmarks.codec_sizes.model_file import ModelFile

CHUNK_BYTES = 2 << 20
_HEAD = struct.Struct("<QQB")  # file size, header length, bytes a word
_LENGTH = struct.Struct("<I")

Bytes = npt.NDArray[np.uint8]
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def split_planes(words: Bytes, itemsize: int) -> Bytes:
    """Byte k of every word, for k = 0, 1, ...; shape (n * itemsize,) both."""
    values = words.view(_WORDS[itemsize])
    planes = np.empty((itemsize, len(values)), np.uint8)
    for k in range(itemsize):
        np.right_shift(values, 8 * k, out=planes[k], casting="unsafe")
    return planes.reshape(-1)


def join_planes(planes: Bytes, itemsize: int) -> Bytes:
    """The inverse of split_planes."""
    rows = planes.reshape(itemsize, -1)
    words = np.empty((rows.shape[1], itemsize), np.uint8)
    for k in range(itemsize):
        words[:, k] = rows[k]
    return words.reshape(-1)


class XorPlanes:
    name: ClassVar[str] = "XOR + byte planes + zstd-1"
    about: ClassVar[str] = "against the base; 2 MiB chunks, one zstd frame of level 1 each"
    packages: ClassVar[tuple[str, ...]] = ("zstandard", "numpy")

    def encode(self, fine_tune: ModelFile, base: ModelFile) -> Encoded:
        start, itemsize = fine_tune.data_start, fine_tune.itemsize
        compressor = zstandard.ZstdCompressor(level=1)
        head = compressor.compress(fine_tune.data[:start])
        parts = [_HEAD.pack(len(fine_tune.data), start, itemsize), _LENGTH.pack(len(head)), head]
        ours = np.frombuffer(fine_tune.data, np.uint8, offset=start)
        theirs = np.frombuffer(base.data, np.uint8, offset=base.data_start)
        if len(ours) != len(theirs):
            raise ValueError("XOR of whole files needs a base of the same size")
        for i in range(0, len(ours), CHUNK_BYTES):
            delta = ours[i : i + CHUNK_BYTES] ^ theirs[i : i + CHUNK_BYTES]
            chunk = compressor.compress(split_planes(delta, itemsize).data)
            parts += [_LENGTH.pack(len(chunk)), chunk]
        stream = b"".join(parts)
        return Encoded(len(stream), stream)

    def decode(self, encoded: Encoded, base: ModelFile) -> bytearray:
        stream = memoryview(encoded.state)
        size, start, itemsize = _HEAD.unpack_from(stream)
        decompressor = zstandard.ZstdDecompressor()
        out = bytearray(size)
        target = np.frombuffer(out, np.uint8)[start:]
        theirs = np.frombuffer(base.data, np.uint8, offset=base.data_start)
        head, position = _read_part(stream, _HEAD.size)
        out[:start] = decompressor.decompress(head)
        for i in range(0, len(target), CHUNK_BYTES):
            chunk, position = _read_part(stream, position)
            planes = np.frombuffer(decompressor.decompress(chunk), np.uint8)
            words = join_planes(planes, itemsize)
            np.bitwise_xor(words, theirs[i : i + CHUNK_BYTES], out=target[i : i + CHUNK_BYTES])
        return out


def _read_part(stream: memoryview, position: int) -> tuple[memoryview, int]:
    begin = position + _LENGTH.size
    end = begin + _LENGTH.unpack_from(stream, position)[0]
    return stream[begin:end], end

"""Weights of integers: steps, frames of their parts, and their decoding."""

from typing import Any

import numpy as np

from deltahub.codecs.dtypes import DType
from deltahub.codecs.exports.coding import decode_slice, open_part
from deltahub.codecs.exports.integers import (
    IntegerCoding,
    encode_integers,
    nearest_words,
    numbers_of,
)


def matrix(dtype: DType, rows: int, columns: int, seed: int = 0) -> bytes:
    """Words of a matrix whose rows are of different scale."""
    random = np.random.default_rng(seed)
    scales = 0.02 * np.exp(0.3 * random.standard_normal((rows, 1)))
    return nearest_words(dtype, random.standard_normal((rows, columns)) * scales).tobytes()


def steps_of(dtype: DType, words: bytes, columns: int, most: int) -> bytes:
    """Steps of which a row's largest element has `most`."""
    values = numbers_of(dtype, np.frombuffer(words, f"<u{dtype.itemsize}")).reshape(-1, columns)
    return nearest_words(dtype, np.abs(values).max(axis=1) / most).tobytes()


def parts_of(how: IntegerCoding, words: bytes, steps: bytes) -> tuple[dict[str, bytes], bytes]:
    parts, decoded = encode_integers(how, memoryview(words), steps)
    return parts, bytes(decoded)


def decode_parts(how: IntegerCoding, parts: dict[str, bytes], count: int) -> bytes:
    """All elements of a slice."""
    out = bytearray(count * how.dtype.itemsize)
    opened = {part: open_part(how, part, frame, count) for part, frame in parts.items()}
    decode_slice(how, opened, memoryview(out))
    return bytes(out)


def document(**changes: Any) -> dict[str, Any]:
    """What a file says of the weight w of 6 x 40 BF16 elements."""
    each = {"dtype": "BF16", "shape": [6, 40], "form": "integers"} | changes
    return {"version": 1, "weights": {"w": each}}

"""Runs each set of native kernels on preludes and streams, without guards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from deltahub.codecs import CorruptFrame, DType
from deltahub.codecs._native import FmDeltaDecoder, NeuzipDecoder, kernel_names, use_kernels
from deltahub.codecs.kernels import choose_kernels
from deltahub.codecs.protocol import Buffer
from deltahub.codecs.reference import fm_delta, neuzip_lossless
from deltahub.codecs.reference.coder import guarded
from deltahub.codecs.reference.fm_delta import BlockShape
from deltahub.codecs.reference.fm_delta_model import FIRST_VERSION
from deltahub.codecs.reference.words import Words
from deltahub.codecs.words import WORD_KINDS

NAMES = kernel_names()
every_kernel = pytest.mark.parametrize("kernels", NAMES)


@contextmanager
def running(kernels: str) -> Iterator[None]:
    """Encoders and decoders that are created in this context use these kernels."""
    use_kernels(kernels)
    try:
        yield
    finally:
        choose_kernels()


def run_delta(
    kernels: str,
    dtype: DType,
    frame: tuple[int, int],
    prelude: Buffer,
    stream: Buffer,
    base: bytes,
    shape: BlockShape,
    version: int = FIRST_VERSION,
) -> bytes | None:
    """A decoded block of a frame of (rows, columns); None if the kernels refuse it."""
    out = bytearray(len(base))
    with running(kernels):
        try:
            decoder = FmDeltaDecoder(WORD_KINDS[dtype], prelude, *frame, version)
            decoder.decode(stream, base, out, shape.left, shape.rows, shape.columns)
        except ValueError:
            return None
    return bytes(out)


def run_floats(
    kernels: str, dtype: DType, prelude: Buffer, stream: Buffer, n_words: int
) -> bytes | None:
    out = bytearray(n_words * dtype.itemsize)
    with running(kernels):
        try:
            NeuzipDecoder(WORD_KINDS[dtype], prelude).decode(stream, out)
        except ValueError:
            return None
    return bytes(out)


def delta_outcome(
    dtype: DType,
    frame: tuple[int, int],
    prelude: bytes,
    stream: bytes,
    base: bytes,
    shape: BlockShape,
    version: int = FIRST_VERSION,
) -> bytes | None:
    """The result of the reference for a block; asserts that all kernels give the same."""
    try:
        model = fm_delta.parse_prelude(Words.of(dtype), *frame, prelude, version)
        expected = fm_delta.decode_block(model, guarded(stream), base, shape)
    except CorruptFrame:
        expected = None
    for name in NAMES:
        decoded = run_delta(name, dtype, frame, prelude, stream, base, shape, version)
        assert decoded == expected, name
    return expected


def float_outcome(dtype: DType, prelude: bytes, stream: bytes, n_words: int) -> bytes | None:
    try:
        model = neuzip_lossless.parse_prelude(Words.of(dtype), prelude)
        expected = neuzip_lossless.decode_block(model, guarded(stream), n_words)
    except CorruptFrame:
        expected = None
    for name in NAMES:
        assert run_floats(name, dtype, prelude, stream, n_words) == expected, name
    return expected


def is_delta_prelude(
    dtype: DType, frame: tuple[int, int], prelude: bytes, version: int = FIRST_VERSION
) -> bool:
    """Whether the reference accepts a prelude; asserts that all kernels agree."""
    kind = WORD_KINDS[dtype]
    try:
        fm_delta.parse_prelude(Words.of(dtype), *frame, prelude, version)
        expected = True
    except CorruptFrame:
        expected = False
    for name in NAMES:
        with running(name):
            assert expected == _is_made(lambda: FmDeltaDecoder(kind, prelude, *frame, version))
    return expected


def is_float_prelude(dtype: DType, prelude: bytes) -> bool:
    try:
        neuzip_lossless.parse_prelude(Words.of(dtype), prelude)
        expected = True
    except CorruptFrame:
        expected = False
    for name in NAMES:
        with running(name):
            assert expected == _is_made(lambda: NeuzipDecoder(WORD_KINDS[dtype], prelude))
    return expected


def _is_made(make: Callable[[], object]) -> bool:
    try:
        make()
    except ValueError:
        return False
    return True

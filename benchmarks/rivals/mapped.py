"""Generic coders of numbers on the mapped integer delta: pcodec and OpenZL."""

from typing import ClassVar

import numpy as np

from benchmarks.rivals.build import library
from benchmarks.rivals.rival import Words


def map_delta(words: Words, base: Words) -> Words:
    """words - base in numeric order of their floats, modulo 2^B."""
    out = np.empty_like(words)
    library().map_delta(
        words.ctypes.data, base.ctypes.data, len(words), words.itemsize, out.ctypes.data
    )
    return out


def add_delta(deltas: Words, base: Words, out: Words) -> None:
    """The inverse of map_delta; deltas and out may be the same array."""
    library().add_delta(
        deltas.ctypes.data, base.ctypes.data, len(out), out.itemsize, out.ctypes.data
    )


_SIGNED = {2: np.int16, 4: np.int32}


class PcodecDelta:
    name: ClassVar[str] = "pcodec, mapped delta"
    about: ClassVar[str] = "the package's standalone format, level 8 (its default), signed deltas"
    packages: ClassVar[tuple[str, ...]] = ("pcodec",)
    takes_base: ClassVar[bool] = True

    def encode(self, words: Words, base: Words, dtype: str) -> bytes:
        from pcodec import ChunkConfig, standalone

        deltas = map_delta(words, base).view(_SIGNED[words.itemsize])
        return bytes(standalone.simple_compress(deltas, ChunkConfig()))

    def decode(self, encoded: bytes, base: Words, dtype: str, out: Words) -> None:
        from pcodec import standalone

        standalone.simple_decompress_into(encoded, out.view(_SIGNED[out.itemsize]))
        add_delta(out, base, out)


class OpenZLDelta:
    name: ClassVar[str] = "OpenZL, mapped delta"
    about: ClassVar[str] = "graph: zigzag, byte planes, the library's choice of coder for each"
    packages: ClassVar[tuple[str, ...]] = ("openzl",)
    takes_base: ClassVar[bool] = True

    def encode(self, words: Words, base: Words, dtype: str) -> bytes:
        from openzl import ext as zl

        compressor = zl.Compressor()
        compressor.select_starting_graph(self._graph(compressor))
        context = zl.CCtx()
        context.ref_compressor(compressor)
        context.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        deltas = map_delta(words, base)
        return bytes(context.compress([zl.Input(zl.Type.Numeric, deltas)]))

    def _graph(self, compressor: object) -> object:
        from openzl import ext as zl

        planes = zl.nodes.TransposeSplit()(compressor, zl.graphs.Compress()(compressor))
        structs = zl.nodes.ConvertNumToStructLE()(compressor, planes)
        return zl.nodes.Zigzag()(compressor, structs)

    def decode(self, encoded: bytes, base: Words, dtype: str, out: Words) -> None:
        from openzl import ext as zl

        (found,) = zl.DCtx().decompress(encoded)
        deltas = found.content.as_nparray()
        add_delta(deltas, base, out)

"""zstd level 3 over the fine-tuned file alone: what a generic store gets."""

from typing import ClassVar

import zstandard

from benchmarks.codec_sizes.contenders.contender import Encoded
from benchmarks.codec_sizes.model_file import ModelFile


class ZstdAlone:
    name: ClassVar[str] = "zstd-3"
    about: ClassVar[str] = "the file alone, one zstd stream of level 3"
    packages: ClassVar[tuple[str, ...]] = ("zstandard",)

    def encode(self, fine_tune: ModelFile, base: ModelFile) -> Encoded:
        compressed = zstandard.ZstdCompressor(level=3).compress(fine_tune.data)
        return Encoded(len(compressed), compressed)

    def decode(self, encoded: Encoded, base: ModelFile) -> bytes:
        return zstandard.ZstdDecompressor().decompress(encoded.state)

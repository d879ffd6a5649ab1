"""All codecs, by name and by number."""

from collections.abc import Sequence

from deltahub.codecs.errors import UnknownCodec, UnsupportedVersion
from deltahub.codecs.fm_delta.codec import FmDelta
from deltahub.codecs.kernels import choose_kernels
from deltahub.codecs.masks.codec import Masks
from deltahub.codecs.neuzip.lossless import NeuzipLossless
from deltahub.codecs.protocol import Codec
from deltahub.codecs.raw import Raw
from deltahub.codecs.zstd import Zstd


def _index(codecs: Sequence[Codec]) -> tuple[dict[str, Codec], dict[int, Codec]]:
    by_id = {codec.codec_id: codec for codec in codecs}
    by_number = {codec.number: codec for codec in codecs}
    if not len(by_id) == len(by_number) == len(codecs):
        raise AssertionError("two codecs claim the same id or number")
    return by_id, by_number


choose_kernels()
BY_ID, BY_NUMBER = _index([Raw(), Zstd(), FmDelta(), NeuzipLossless(), Masks()])


def get_codec(codec_id: str) -> Codec:
    """The codec with this name; UnknownCodec if there is none."""
    try:
        return BY_ID[codec_id]
    except KeyError as exc:
        raise UnknownCodec(f"no codec {codec_id!r}; there are {', '.join(BY_ID)}") from exc


def codec_for(number: int, version: int) -> Codec:
    """The codec that reads frames of this number and version; UnknownCodec, UnsupportedVersion."""
    codec = BY_NUMBER.get(number)
    if codec is None:
        raise UnknownCodec(f"codec number {number} is unknown: written by a newer release?")
    if not 1 <= version <= codec.version:
        raise UnsupportedVersion(
            f"{codec.codec_id} version {version} is not readable here; this release reads up to"
            f" {codec.version}"
        )
    return codec

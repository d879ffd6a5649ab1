"""Encoder generation: one number for this release's encoders and an effort.

A frame's row stores in `tried` the generation of the encoders that last tried to make it smaller.
"""

from typing import Final

from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.codec import may_have_stride
from deltahub.codecs.protocol import Effort
from deltahub.codecs.registry import BY_ID

# More than every present and future effort.
_EFFORTS: Final = 16
NOT_TRIED: Final = 0


def generation_of(effort: Effort) -> int:
    """The generation of this release's encoders at an effort.

    It grows with each new codec or codec version, then with the effort. Encoding a frame of a lower
    generation again may make it smaller. Releases keep every codec and never lower a version, so no
    later release has a lower generation for the same effort.
    """
    # Codecs of two inputs are chosen by a job, not by trying what is smallest.
    versions = (codec.version for codec in BY_ID.values() if codec.n_inputs < 2)
    return sum(versions) * _EFFORTS + effort


def standalone_generation() -> int:
    """The generation of a frame encoded without a base, which no higher effort makes smaller."""
    return generation_of(max(Effort))


def is_up_to_date(codec: str, version: int, dtype: DType, effort: int, wanted: Effort) -> bool:
    """Whether a frame's header shows that encoding it again at the effort `wanted` is useless.

    Never true for codecs without an effort, whose frames say 0: another codec may
    encode the same elements better by now.
    """
    if BY_ID[codec].n_inputs > 1:
        return True  # a job chose the codec for what the elements mean, not for their size
    if effort < wanted:
        return False
    # Newer versions of a codec only improve on values of a shorter dtype stored in a longer one.
    # 16-bit tensors hardly ever hold such values, so encoding all of them again would be useless.
    return version == BY_ID[codec].version or dtype.itemsize <= 2


def would_encode_same(codec: str, version: int, dtype: DType, source: memoryview) -> bool:
    """Whether today's encoders would encode these elements as before, at the same effort."""
    return version == BY_ID[codec].version or not may_have_stride(dtype, source)

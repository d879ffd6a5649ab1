"""How far this release's encoders have got, as one number that rows remember of their frames."""

from typing import Final

from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.codec import may_have_stride
from deltahub.codecs.protocol import Effort
from deltahub.codecs.registry import BY_ID

# Above every effort that there is, or will be.
_EFFORTS: Final = 16
NOT_TRIED: Final = 0


def generation_of(effort: Effort) -> int:
    """What the encoders can do at this effort: higher with each codec and version, then by effort.

    A frame of a lower rank may become smaller. Codecs are never removed and their versions only
    grow, so no later release has a lower rank for the same effort.
    """
    return sum(codec.version for codec in BY_ID.values()) * _EFFORTS + effort


def standalone_generation() -> int:
    """The rank of a frame that was to have no base: no effort makes those smaller."""
    return generation_of(max(Effort))


def is_up_to_date(codec: str, version: int, dtype: DType, effort: int, wanted: Effort) -> bool:
    """Whether a frame's own header says that coding it anew at the effort cannot change it.

    Codecs that know no effort (0) never say so: another codec may have learnt to do better.
    """
    if effort < wanted:
        return False
    # What a codec's newest version has more than the first one is for numbers of a shorter
    # dtype in a longer one. Of 16 bits there are hardly any, and all would be looked at again.
    return version == BY_ID[codec].version or dtype.itemsize <= 2


def would_encode_same(codec: str, version: int, dtype: DType, source: memoryview) -> bool:
    """Whether elements that such a frame holds are coded today as they were, at the same effort."""
    return version == BY_ID[codec].version or not may_have_stride(dtype, source)

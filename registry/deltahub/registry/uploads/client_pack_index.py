"""Lists the frames of packs that clients upload. Nothing in such a pack is trusted."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import select

from deltahub.codecs.errors import CodecError, CorruptFrame, CorruptPack, UnsupportedVersion
from deltahub.codecs.frames import FrameHeader, parse_header, peek_header_length
from deltahub.codecs.frames.pack import MAX_PACK, read_index
from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.db.models import Landing
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import InvalidFrame
from deltahub.registry.landings.damage import UploadDamaged
from deltahub.registry.landings.reader import LandingReader
from deltahub.registry.packs.reading.views import is_turned
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound, ShortObject

# Uploads of one user that are searched for the other frames of a large tensor.
MAX_SEARCHED = 1000
# Decoded bytes. The DeltaHub client makes no smaller frames, except the last frame of a tensor.
MIN_FRAME_BYTES = 1 << 20
_PEEK = 16
_PROBE = 4096


@dataclass(frozen=True, slots=True)
class UploadedFrame:
    """One frame in an uploaded pack: bytes [start, end) of its tensor.

    bases: distinct content ids. is_turned: whether the base is transposed. The header is not kept,
    because a hostile pack may name millions of segments; it is parsed again when it is needed.
    """

    landing_id: str
    offset: int
    length: int
    tensor: bytes
    start: int
    end: int
    tensor_size: int
    bases: tuple[bytes, ...]
    is_turned: bool = False


class UploadedPack:
    """A complete upload that may be a pack."""

    def __init__(self, reg: Registry, landing: Landing) -> None:
        self._bytes = LandingReader(reg, landing.id)
        self.landing = landing

    def frames(self) -> list[UploadedFrame]:
        """All frames. InvalidFrame unless the index agrees with the frames' headers."""
        try:
            entries = read_index(self._read, self.landing.size)
            return [self._frame(each.offset, each.length, each.tensor) for each in entries]
        except CodecError as exc:
            raise InvalidFrame(f"upload {self.landing.sha256} is not a valid pack: {exc}") from exc

    def tensors(self) -> set[bytes]:
        """The content ids in the pack's index; none if the upload is not a pack."""
        try:
            return {entry.tensor for entry in read_index(self._read, self.landing.size)}
        except (CorruptPack, UnsupportedVersion, ObjectNotFound, ShortObject, UploadDamaged):
            return set()

    def _frame(self, offset: int, length: int, tensor: bytes) -> UploadedFrame:
        cancellation.check()
        header = self._header(offset, length)
        if header.frame_length != length or header.tensor != tensor:
            raise CorruptFrame(f"the frame at {offset} is not the one that the index names")
        return UploadedFrame(
            landing_id=self.landing.id,
            offset=offset,
            length=length,
            tensor=tensor,
            start=header.start_byte,
            end=header.start_byte + header.size_bytes,
            tensor_size=header.tensor_size_bytes,
            bases=header.base.base_ids() if header.base is not None else (),
            is_turned=is_turned(header.base),
        )

    def _header(self, offset: int, length: int) -> FrameHeader:
        head = self._read(offset, min(length, _PROBE))
        n = peek_header_length(head[:_PEEK])
        if n > length:
            raise CorruptFrame(f"the frame at {offset} ends within its header")
        return parse_header(head if n <= len(head) else self._read(offset, n))

    def _read(self, offset: int, length: int) -> bytes:
        return self._bytes.read_at(offset, length)


def other_packs(session: ReadSession, caller: Caller, landing: Landing) -> list[Landing]:
    """The caller's other uploads that may be packs, newest first, at most MAX_SEARCHED."""
    return list(
        session.scalars(
            select(Landing)
            .where(
                Landing.user_id == caller.user_id,
                Landing.state == "complete",
                Landing.size <= MAX_PACK,
                Landing.id != landing.id,
            )
            .order_by(Landing.created_at.desc())
            .limit(MAX_SEARCHED)
        )
    )


def choose_frames(groups: Sequence[Sequence[UploadedFrame]]) -> list[UploadedFrame] | None:
    """Frames that make up the whole tensor, in order; None if some are missing.

    groups: the tensor's frames, one list per pack, newest pack first. A frame that overlaps frames
    of a newer pack is ignored: it is from a push that was interrupted. InvalidFrame if a pack
    contradicts itself or has too many frames for the tensor's size.
    """
    size = groups[0][0].tensor_size
    chosen: list[UploadedFrame] = []
    for group in groups:
        _check_group(group)
        if group[0].tensor_size == size:
            fitting = [frame for frame in group if _is_uncovered(chosen, frame)]
            chosen = sorted(chosen + fitting, key=_start)
    position = 0
    for frame in chosen:
        if frame.start != position:
            return None
        position = frame.end
    return chosen if position == size else None


def _check_group(group: Sequence[UploadedFrame]) -> None:
    name, size = group[0].tensor.hex(), group[0].tensor_size
    if any(frame.tensor_size != size for frame in group):
        raise InvalidFrame(f"frames of tensor {name} disagree about its size")
    if len(group) > 1 + size // MIN_FRAME_BYTES:
        raise InvalidFrame(f"{len(group)} frames for tensor {name} of {size} bytes are too many")
    for before, after in pairwise(sorted(group, key=_start)):
        if after.start < before.end:
            raise InvalidFrame(f"frames of tensor {name} overlap")


def _is_uncovered(chosen: Sequence[UploadedFrame], frame: UploadedFrame) -> bool:
    """Whether the frame overlaps none of the chosen frames, which are in order."""
    index = bisect_left(chosen, frame.end, key=_start)
    return index == 0 or chosen[index - 1].end <= frame.start


def _start(frame: UploadedFrame) -> int:
    return frame.start

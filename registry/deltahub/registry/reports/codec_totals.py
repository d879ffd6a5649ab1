"""How many bytes the frames of each codec hold, and how many they take: read in pieces."""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select

from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import Frame
from deltahub.registry.registry import Registry

# Tensors of one query, which takes a tenth of a second.
_PIECE: Final = 50_000
# Longest time of one call of CodecCount.go_on().
_CALL_S: Final = 0.5
# The pause after a count: at least this, and so many times as long as its queries took.
PAUSE_S: Final = 60.0
_REST: Final = 20


@dataclass
class CodecTotal:
    """The frames of one codec. decoded_bytes: of what they hold; stored_bytes: in packs."""

    n_frames: int = 0
    decoded_bytes: int = 0
    stored_bytes: int = 0


class CodecCount:
    """Counts all frames by codec, again and again, a piece at a time.

    A table of frames may have a hundred million rows, which no scrape could wait for. Frames that
    change while a count is under way are counted as they are when its piece is read.
    """

    def __init__(self, reg: Registry) -> None:
        self._reg = reg
        # Number of the codec -> total, of the last count that was finished.
        self.totals: Mapping[int, CodecTotal] = {}
        self.is_known = False
        self._next_tensor = 0
        self._counted: dict[int, CodecTotal] = defaultdict(CodecTotal)
        self._spent_s = 0.0
        self._pause_until = 0.0

    def go_on(self) -> None:
        """Read the next pieces; to be called at intervals, by one thread at a time."""
        began = time.monotonic()
        if began < self._pause_until:
            return
        while is_more := self._read_piece():
            if time.monotonic() > began + _CALL_S:
                break
        now = time.monotonic()
        self._spent_s += now - began
        if not is_more:
            self.totals, self.is_known = dict(self._counted), True
            self._pause_until = now + max(PAUSE_S, _REST * self._spent_s)
            self._next_tensor, self._spent_s = 0, 0.0
            self._counted = defaultdict(CodecTotal)

    def _read_piece(self) -> bool:
        """Count the frames of the next tensors; False if there are none."""
        first = self._next_tensor
        with self._reg.db.read() as session:
            # Rows of frames come in the order of this key, so the two ends bound the query.
            last = session.scalar(
                select(Frame.tensor_id)
                .where(Frame.tensor_id >= first)
                .order_by(Frame.tensor_id)
                .offset(_PIECE - 1)
                .limit(1)
            ) or session.scalar(select(func.max(Frame.tensor_id)))
            if last is None or last < first:
                return False
            found = session.execute(
                select(Frame.codec, func.count(), total(Frame.size), total(Frame.length))
                .where(Frame.tensor_id.between(first, last))
                .group_by(Frame.codec)
            ).all()
        for codec, n_frames, decoded_bytes, stored_bytes in found:
            each = self._counted[codec]
            each.n_frames += n_frames
            each.decoded_bytes += decoded_bytes
            each.stored_bytes += stored_bytes
        self._next_tensor = last + 1
        return True

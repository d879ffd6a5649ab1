"""Where a thread is in a chain of deltas."""

import threading

from deltahub.codecs.frames.base_plan import ReadBase
from deltahub.registry.errors import DataLost

# Deltas in a chain. Far above every allowed depth, so a longer chain is a cycle in damaged rows.
MAX_CHAIN = 32
# Branches of a merge are masks over a unified tensor, which is a delta of the base's: two deltas
# more than the longest chain that the hub makes by itself.
VIEW_DEPTH = 2


class TensorGone(DataLost):
    """A tensor has no row, its row names an object that is gone, or its bases form a cycle.

    A reader that used older rows reads the rows again before it raises this.
    """


class Chain(threading.local):
    """One thread's place in the chain that it decodes.

    is_bypassing_hot_bases: whether it repeats a failed decode without the hot bases.
    """

    def __init__(self) -> None:
        self._depth = 0
        self.is_bypassing_hot_bases = False

    def limited(self, read_base: ReadBase) -> ReadBase:
        """The same, but a cycle of rows raises TensorGone instead of an endless recursion.

        Damaged rows can form a cycle, and so can rows that were read at different times: a
        tensor's former base may be a delta of it by now.
        """

        def read(tensor: bytes, first_byte: int, out: memoryview) -> None:
            if self._depth >= MAX_CHAIN:
                raise TensorGone(f"the bases of {tensor.hex()} form a cycle; run deltahub fsck")
            self._depth += 1
            try:
                read_base(tensor, first_byte, out)
            finally:
                self._depth -= 1

        return read

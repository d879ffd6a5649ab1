"""Reads frames from an answer and decodes them, a group of blocks at a time, into a file."""

from collections.abc import Callable
from typing import Protocol

from deltahub.client.local.paths import write_at
from deltahub.client.local.tensor_sources import Sources
from deltahub.client.pull.plan import Slot
from deltahub.codecs.errors import CorruptFrame
from deltahub.codecs.frames import (
    FrameHeader,
    FrameView,
    assemble,
    parse_header,
    peek_header_length,
)

# Decoded bytes of a group of blocks. A larger block (16 MiB at most) is a group of its own.
_GROUP_BYTES = 8 << 20
_PEEK_BYTES = 16


class Body(Protocol):
    """An answer with frames."""

    def read_into(self, out: memoryview) -> None:
        """Fills `out`. ConnectionError when the body ends before that."""
        ...


class FrameReader:
    """Reads the frames of tensors from an answer and writes the decoded bytes to a file.

    Memory: payload, base and result of one group of blocks, for a tensor of any size.
    """

    def __init__(
        self,
        fd: int,
        path: str,
        sources: Sources,
        threads: int,
        on_received: Callable[[int], None],
    ) -> None:
        self._fd = fd
        self._path = path
        self._sources = sources
        self._threads = threads
        self._on_received = on_received
        self._payload = _Buffer()
        self._base = _Buffer()
        self._out = _Buffer()

    def read_tensor(self, reply: Body, slot: Slot) -> None:
        """Writes one tensor's bytes. CodecError when the frames are damaged or another tensor's."""
        done = 0
        while done < slot.size:
            view = read_view(reply, self._on_received)
            if view.header.start_byte != done:
                raise CorruptFrame(f"the hub sent a frame from byte {view.header.start_byte}")
            done += self._read_frame(reply, view, slot)

    def read_frame(self, reply: Body, slot: Slot) -> int:
        """Writes the bytes of any one frame of a tensor; their number. CodecError."""
        return self._read_frame(reply, read_view(reply, self._on_received), slot)

    def _read_frame(self, reply: Body, view: FrameView, slot: Slot) -> int:
        header = view.header
        if header.tensor != slot.tensor or header.tensor_size_bytes != slot.size:
            raise CorruptFrame("the hub sent a frame of another tensor")
        if header.start_byte + header.size_bytes > slot.size:
            raise CorruptFrame("the hub sent a frame beyond the end of its tensor")
        i = 0
        while i < header.n_blocks:
            j = _group_end(view, i)
            self._read_blocks(reply, view, i, j, slot.start + header.start_byte)
            i = j
        return header.size_bytes

    def _read_blocks(self, reply: Body, view: FrameView, i: int, j: int, offset: int) -> None:
        begin, end = view.stored_span(i, j)
        payload = self._payload.take(end - begin)
        reply.read_into(payload)
        self._on_received(end - begin)
        first, last = view.block_span(i)[0], view.block_span(j - 1)[1]
        out = self._out.take(last - first)
        base = self._assemble(view.header, first, last)
        view.decode_into(i, j, payload, base, out, self._threads)
        write_at(self._fd, out, offset + first, self._path)

    def _assemble(self, header: FrameHeader, first: int, last: int) -> memoryview | None:
        if header.base is None:
            return None
        base = self._base.take(header.base_bytes(last - first))
        itemsize = header.dtype.itemsize
        assemble(
            header.base,
            header.dtype,
            first // itemsize,
            (last - first) // itemsize,
            self._sources.read,
            base,
        )
        return base


def read_view(reply: Body, on_received: Callable[[int], None]) -> FrameView:
    """Reads a frame's header, prelude and block table."""
    prefix = bytearray(_PEEK_BYTES)
    reply.read_into(memoryview(prefix))
    _grow(reply, prefix, peek_header_length(prefix))
    _grow(reply, prefix, parse_header(prefix).prefix_length)
    on_received(len(prefix))
    return FrameView.parse(prefix)


def _grow(reply: Body, prefix: bytearray, length: int) -> None:
    begin = len(prefix)
    prefix.extend(bytes(length - begin))
    with memoryview(prefix) as view:
        reply.read_into(view[begin:])


def _group_end(view: FrameView, i: int) -> int:
    """The end j of the group of blocks [i, j) that are decoded together."""
    begin = view.block_span(i)[0]
    j = i + 1
    while j < view.header.n_blocks and view.block_span(j)[1] - begin <= _GROUP_BYTES:
        j += 1
    return j


class _Buffer:
    """Memory that all groups of blocks reuse; it grows to the largest group."""

    def __init__(self) -> None:
        self._data = bytearray()

    def take(self, size: int) -> memoryview:
        if len(self._data) < size:
            self._data = bytearray(size)
        return memoryview(self._data)[:size]

"""Reads any range of a stored tensor, decoded block by block in bounded memory."""

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from deltahub.codecs.errors import CodecError
from deltahub.codecs.frames import base_plan
from deltahub.codecs.frames.base_plan import ReadBase
from deltahub.registry.errors import DataLost, RegistryError
from deltahub.registry.losses.findings import report, text_of
from deltahub.registry.losses.marks import any_lost, mark_tensors
from deltahub.registry.losses.second_copies import read_first
from deltahub.registry.packs.base_cache import HotBases
from deltahub.registry.packs.block_cache import ByteCache
from deltahub.registry.packs.buffers import allocate_buffer
from deltahub.registry.packs.frame_reader import (
    DamagedFrame,
    FrameReader,
    OpenFrame,
    codec_errors_as_data_loss,
)
from deltahub.registry.packs.locations import (
    TensorLocation,
    closure,
    locate,
    locate_content,
)
from deltahub.registry.packs.reading.chain import Chain, TensorGone
from deltahub.registry.packs.reading.read_ahead import ReadAhead, Span
from deltahub.registry.storage.base import ObjectNotFound

if TYPE_CHECKING:
    from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)

MIB = 1 << 20
# Bytes of one read of the store: enough to hide its latency, few enough to hold several in memory.
RANGE_BYTES = 4 * MIB
# Bytes of the first read of a request: fewer, so that the first byte comes soon.
FIRST_RANGE_BYTES = MIB


class TensorReader:
    """Reads tensors for one process; safe to share between threads.

    Memory: `cache_bytes` for partly used base blocks, frame prefixes and tensor locations; for each
    running read a few buffers of RANGE_BYTES (or of one block, if that is larger) for each delta of
    the chain.
    """

    def __init__(
        self,
        registry: "Registry",
        cache_bytes: int | None = None,
        hot_bases: HotBases | None = None,
    ) -> None:
        """hot_bases: for readers that serve clients, which also read the copies of packs on this
        machine. Maintenance, and what proves new data, must read the store itself.
        """
        self._registry = registry
        # fsck reports damage without changing anything, and its repair marks it by itself.
        self.marks_damage = not registry.db.is_read_only
        self._hot_bases = hot_bases
        limit = registry.settings.cache_bytes if cache_bytes is None else cache_bytes
        self.frames = FrameReader(registry, limit // 8, is_serving=hot_bases is not None)
        # (pack id, offset of the frame, block) -> decoded bytes. Valid because packs never change.
        self._blocks: ByteCache[tuple[str, int, int], memoryview] = ByteCache(limit * 3 // 4)
        # (domain, content id) -> location of the tensor that the content id means in the domain
        self._places: ByteCache[tuple[int, bytes], TensorLocation] = ByteCache(limit // 8)
        self._threads = registry.settings.codec_threads
        self._chain = Chain()

    def read_tensor_into(self, tensor_id: int, first_byte: int, out: memoryview) -> None:
        """Fill `out` with the tensor's bytes from `first_byte`.

        TensorGone if the tensor or its object is gone, DataLost if stored bytes are damaged.
        """
        position = 0
        located = self.locate([tensor_id])
        end = first_byte + out.nbytes
        for piece in self.stream_tensor(located, tensor_id, first_byte, end):
            out[position : position + piece.nbytes] = piece
            position += piece.nbytes

    def locate(self, tensor_ids: Iterable[int]) -> dict[int, TensorLocation]:
        """Row id -> location of these tensors and of all bases down to their anchors."""
        with self._registry.db.read() as session:
            graph = closure(session, tensor_ids)
            located = locate(session, graph)
        for base in {base for bases in graph.values() for base in bases} & located.keys():
            self._remember(located[base].domain_id, located[base])
        return located

    def load_locations(self, domain_id: int, tensor_ids: Iterable[int]) -> None:
        """Look up many tensors at once that base_reader(domain_id) will soon read."""
        for location in self.locate(tensor_ids).values():
            self._remember(domain_id, location)

    def stream_tensor(
        self,
        located: dict[int, TensorLocation],
        tensor_id: int,
        first: int,
        end: int,
        first_range: int = FIRST_RANGE_BYTES,
    ) -> Iterator[memoryview]:
        """The tensor's bytes [first, end) in block ranges of about RANGE_BYTES each.

        located: a result of locate(), however old. It is updated where objects have moved, and
        where damaged frames were replaced.
        first_range: about how many bytes the first block range has.
        """
        limit = first_range
        while first < end:
            tensor = located.get(tensor_id)
            if tensor is None:
                raise TensorGone(f"tensor {tensor_id} has no row; run deltahub fsck")
            try:
                piece = self._read_blocks(tensor, first, min(end, first + limit), end)
            except (ObjectNotFound, DataLost) as exc:
                fresh = self._relocate(tensor)
                located[tensor_id] = self._new_location(tensor, fresh, exc, first)
                continue
            yield piece
            first += piece.nbytes
            limit = RANGE_BYTES

    def decode_blocks(
        self, domain_id: int, frame: OpenFrame, begin: int, stop: int, out: memoryview
    ) -> None:
        """Fill `out` with blocks [begin, stop) of a frame that has no row yet; DataLost.

        Its bases are the tensors that their content ids mean in this domain.
        """
        self._decode(frame, begin, stop, out, self.base_reader(domain_id))

    def base_reader(self, domain_id: int) -> ReadBase:
        """A `read` for base_plan.assemble that resolves content ids in this domain."""
        return self._chain.limited(partial(self._read_base, domain_id, False))

    def _stored_bases(self, tensor: TensorLocation) -> ReadBase:
        """A `read` for base_plan.assemble that reads the rows stored as the tensor's bases.

        Cycles and depths were checked on these rows. In the domain, the content id may mean another
        row with the same bytes by now, even one that is a delta of this tensor.
        """

        def read(base: bytes, first_byte: int, out: memoryview) -> None:
            base_domain = tensor.bases.get(base)
            if base_domain is not None:
                self._read_base(base_domain, True, base, first_byte, out)
            else:  # damaged rows: any tensor with the same bytes is correct
                self._read_base(tensor.domain_id, False, base, first_byte, out)

        return self._chain.limited(read)

    def _read_blocks(self, tensor: TensorLocation, first: int, want: int, end: int) -> memoryview:
        """Bytes [first, x) with first < x <= end, from the frame's blocks that reach `want`.

        They are fewer if those blocks have more than RANGE_BYTES, or if only the first blocks are
        in the hot bases.
        """
        location = tensor.frame_holding(first)
        frame = self.frames.open(location)
        begin, stop = frame.block_range(first - location.start, want - location.start)
        low, high = frame.view.span(begin, stop)
        if high - low > RANGE_BYTES and stop - begin > 1:
            # Larger buffers are not pooled: the kernel would have to clear new pages for each.
            stop -= 1
            high = frame.view.span(begin, stop)[1]
        out = allocate_buffer(high - low)
        if n := self._read_hot(frame, begin, out):
            high = low + n
        else:
            self._decode(frame, begin, stop, out, self._stored_bases(tensor))
        return out[first - location.start - low : min(end - location.start, high) - low]

    def _read_hot(self, frame: OpenFrame, begin: int, out: memoryview) -> int:
        """Fill the beginning of `out` with blocks from `begin` on that the hot bases hold.

        Returns the number of bytes: 0 if the first block is missing or the bytes are damaged.
        """
        hot = self._hot_bases_for(frame)
        if hot is None:
            return 0
        n = hot.read_into(frame.place, begin, 0, out)
        if n == 0:
            return 0
        end = frame.view.block_of_byte(frame.view.block_span(begin)[0] + n - 1) + 1
        if frame.view.holds(begin, end, out[:n]):
            return n
        hot.disable("bytes came back changed, check the disk and the memory")
        return 0

    def _decode(
        self, frame: OpenFrame, begin: int, stop: int, out: memoryview, read_base: ReadBase
    ) -> None:
        stored = self.frames.stored(frame, begin, stop)
        with codec_errors_as_data_loss(frame.location.pack_id):
            base = self._base_of(frame, begin, out.nbytes, read_base)
            try:
                frame.view.decode_into(begin, stop, stored, base, out, self._threads)
            except CodecError as exc:
                fresh = self.frames.reread(frame)
                if fresh.whole != frame.whole:
                    self._decode(fresh, begin, stop, out, read_base)
                    return
                again = self.frames.reread_stored(frame, begin, stop, stored)
                if again is not None:
                    frame.view.decode_into(begin, stop, again, base, out, self._threads)
                    return
                hot = self._usable_hot_bases()
                if base is None or hot is None:
                    raise
                self._chain.is_bypassing_hot_bases = True
                try:
                    base = self._base_of(frame, begin, out.nbytes, read_base)
                    frame.view.decode_into(begin, stop, stored, base, out, self._threads)
                finally:
                    self._chain.is_bypassing_hot_bases = False
                hot.disable(f"bytes came back changed, check the disk and the memory ({exc})")

    def _hot_bases_for(self, frame: OpenFrame) -> HotBases | None:
        """The same, but None for raw frames, because decoding those is only a copy."""
        return None if frame.view.header.codec == "raw" else self._usable_hot_bases()

    def _usable_hot_bases(self) -> HotBases | None:
        """The hot bases; None while this thread repeats a failed decode without them."""
        return None if self._chain.is_bypassing_hot_bases else self._hot_bases

    def _base_of(
        self, frame: OpenFrame, begin: int, size: int, read_base: ReadBase
    ) -> memoryview | None:
        """The aligned inputs of `size` decoded bytes of the frame, from block `begin` on."""
        header = frame.view.header
        if header.base is None:
            return None
        low, itemsize = frame.view.block_span(begin)[0], header.dtype.itemsize
        base = allocate_buffer(header.base_bytes(size))
        base_plan.assemble(
            header.base, header.dtype, low // itemsize, size // itemsize, read_base, base
        )
        return base

    def _read_base(
        self, domain_id: int, is_exact: bool, tensor: bytes, first: int, out: memoryview
    ) -> None:
        """is_exact: see locate_content."""
        base = self._find_base(domain_id, is_exact, tensor)
        position = 0
        while position < out.nbytes:
            try:
                position += self._copy_base(base, first + position, out[position:])
            except (ObjectNotFound, DataLost) as exc:
                fresh = self._look_up_base(domain_id, is_exact, tensor)
                base = self._new_location(base, fresh, exc, first + position)

    def _copy_base(self, tensor: TensorLocation, first: int, out: memoryview) -> int:
        """Fill the beginning of `out` with the tensor's bytes from `first` on; returns how many.

        Blocks that are needed whole are decoded into `out`, at most RANGE_BYTES. A block that is
        needed in part is cached, because the next read needs its other part: the blocks of a tensor
        and of its base may begin at different bytes.
        """
        location = tensor.frame_holding(first)
        frame = self.frames.open(location)
        at = first - location.start
        wanted = min(out.nbytes, location.size - at)
        begin, stop = frame.block_range(at, at + min(wanted, RANGE_BYTES))
        low, high = frame.view.block_span(begin)
        hot = self._hot_bases_for(frame)
        if hot is not None and (n := hot.read_into(frame.place, begin, at - low, out[:wanted])):
            return n
        key = (*frame.place, begin)
        decoded = self._blocks.get(key)
        if decoded is None and low == at and high - low <= wanted:
            n = frame.view.span(begin, stop)[1] - low
            if n > wanted:
                stop -= 1
                n = frame.view.span(begin, stop)[1] - low
            self._decode(frame, begin, stop, out[:n], self._stored_bases(tensor))
            if hot is not None:
                hot.offer(frame.place, begin, frame.sizes(begin, stop), out[:n])
            return n
        if decoded is None:
            decoded = allocate_buffer(high - low)
            self._decode(frame, begin, begin + 1, decoded, self._stored_bases(tensor))
            self._blocks.put(key, decoded, high - low)
            if hot is not None:
                hot.offer(frame.place, begin, [high - low], decoded)
        n = min(high - at, wanted)
        out[:n] = decoded[at - low : at - low + n]
        return n

    def _find_base(self, domain_id: int, is_exact: bool, tensor: bytes) -> TensorLocation:
        known = self._places.get((domain_id, tensor))
        if known is not None and not (is_exact and known.domain_id != domain_id):
            return known
        return self._look_up_base(domain_id, is_exact, tensor)

    def _look_up_base(self, domain_id: int, is_exact: bool, tensor: bytes) -> TensorLocation:
        """The current location of the base, read from its rows; TensorGone."""
        with self._registry.db.read() as session:
            found = locate_content(session, domain_id, tensor, is_exact=is_exact)
        if found is None:
            self._places.forget((domain_id, tensor))
            raise TensorGone(f"the base tensor {tensor.hex()} is gone; run deltahub fsck")
        self._remember(domain_id, found)
        return found

    def _relocate(self, stale: TensorLocation) -> TensorLocation | None:
        """The current location of the tensor's row, or of another row with the same contents."""
        fresh = self.locate([stale.id]).get(stale.id)
        # SQLite may give the id of a deleted row to a new row.
        is_same = fresh is not None and (fresh.hash, fresh.domain_id) == (
            stale.hash,
            stale.domain_id,
        )
        if is_same and fresh != stale:
            return fresh
        with self._registry.db.read() as session:
            return locate_content(session, stale.domain_id, stale.hash)

    def _new_location(
        self, stale: TensorLocation, fresh: TensorLocation | None, exc: Exception, byte: int
    ) -> TensorLocation:
        """The fresh location, for another try. If it is the one that failed: DataLost.

        A pack that has a second copy is read from that before anything is called lost. A tensor
        whose frames are damaged or gone is marked, so that the next push sends it again.
        byte: the one that could not be read.
        """
        if fresh is not None and fresh != stale:
            return fresh
        is_damage = isinstance(exc, DamagedFrame | ObjectNotFound)
        if is_damage and fresh is not None:
            if self.frames.turn_to_copy(fresh.frame_holding(byte), exc, self.marks_damage):
                return fresh
            if self.marks_damage:
                self._mark_lost(fresh, byte, exc)
        if isinstance(exc, DamagedFrame):
            # As another class, because deltas of this tensor are marked with it, not by themselves.
            raise DataLost(str(exc)) from exc
        if isinstance(exc, DataLost):
            raise exc
        raise TensorGone(f"{exc}, and no row says where it went; run deltahub fsck") from exc

    def _mark_lost(self, tensor: TensorLocation, byte: int, exc: Exception) -> None:
        """Mark the tensor as lost, if its byte cannot be read without anything from memory."""
        with self._registry.db.read() as session:
            if any_lost(session, [tensor.id]):
                return
        probe = TensorReader(self._registry, 0)
        probe.marks_damage = False
        try:
            next(probe.stream_tensor(probe.locate([tensor.id]), tensor.id, byte, byte + 1))
            log.warning("tensor %s was misread, and read at the next try", tensor.hash.hex())
            return
        except (DataLost, ObjectNotFound):
            pass
        try:
            with self._registry.db.write() as session:
                if locate(session, [tensor.id]).get(tensor.id) == tensor:
                    mark_tensors(session, [tensor.id])
                    read_first(session, [tensor.frame_holding(byte).pack_id])
                    text = text_of("tensor", tensor.hash.hex(), exc)
                    report(session, "tensor", tensor.hash.hex(), "tensor_unreadable", text)
        except RegistryError as error:  # the reader gets its error all the same
            log.warning("tensor %s cannot be marked as lost: %s", tensor.hash.hex(), error)
        else:
            log.error("tensor %s is damaged or gone: it is marked as lost", tensor.hash.hex())

    def read_ahead(self, spans: Iterator[Span]) -> ReadAhead:
        """Hints to the store for one that reads these spans in order. They cost others nothing."""
        return ReadAhead(self._registry.store, spans if self.frames.is_serving else iter(()))

    def bases_in_packs(self, tensor: TensorLocation) -> Iterator[TensorLocation]:
        """Those bases of a tensor that have been located and are not in the hot bases."""
        for content, domain_id in tensor.bases.items():
            base = self._places.get((domain_id, content))
            if base is None or not base.frames:
                continue
            first = base.frames[0]
            hot = self._hot_bases
            if hot is None or not hot.has((first.pack_id, first.offset)):
                yield base

    def _remember(self, domain_id: int, tensor: TensorLocation) -> None:
        size = 300 + 200 * (len(tensor.frames) + len(tensor.bases))
        self._places.put((domain_id, tensor.hash), tensor, size)

"""Finds the base of a tensor whose layout is another one: its parts, or the tensor it is a part of.

A fused qkv is q, k and v back to back; stacked experts are back to back, too. The other way round,
a part is a range of the larger tensor. Each of these may be transposed, or rounded to FP8, as well.
Names say only where to look first. The lengths of rows, and a few elements, decide, so that models
with other names are found as well.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.base_choice import BaseTensor, Range, TensorInfo
from deltahub.codecs.frames.base_plan import BasePlan, ReadBase, ReadTensor
from deltahub.codecs.frames.layouts.names import kind_of, natural, nearest_names_first, numbers
from deltahub.codecs.frames.layouts.searched import (
    PROBE_ELEMENTS,
    Searched,
    is_searched,
    probe_of,
    searched_as,
)
from deltahub.codecs.frames.nearness import U16

# Unrelated weights have about 0.07, a fine-tune mostly more than 0.9.
MIN_NEARNESS: Final = 0.5
SURE: Final = 0.9
# Most places of the base that are compared in vain for a tensor: each may cost a decoded block.
MAX_MISSES: Final = 512
# Most parts of a tensor; a frame has at most as many segments.
MAX_PARTS: Final = 4096
# After so many searches without a find, tensors of this kind are in no other layout; and after so
# many of any kind, none is.
MIN_SEARCHES: Final = 8
MAX_SEARCHES: Final = 64
_MAX_PROBES: Final = 1 << 16  # that are remembered, of 300 bytes


class LayoutSearch:
    """The tensors of one base, to find those that a tensor of another layout consists of.

    Threads may share it. It reads and compares a few elements of each tensor that it tries, and
    remembers those of the base.
    """

    def __init__(
        self,
        tensors: Iterable[BaseTensor],
        read_base: ReadBase,
        unreadable: tuple[type[Exception], ...] = (),
    ) -> None:
        """unreadable: errors of read_base that mean only that a base cannot be used."""
        fit = [each for each in tensors if is_searched(each)]
        self._of_width: dict[int, list[BaseTensor]] = {}
        for tensor in sorted(fit, key=lambda tensor: natural(tensor.name)):
            self._of_width.setdefault(tensor.shape[-1], []).append(tensor)
        self._read_base = read_base
        self._unreadable = unreadable
        self._probes: dict[tuple[bytes, int], U16 | None] = {}
        # By kind (names but for their numbers): searches without a find; None once there was one.
        self._in_vain: dict[str, int | None] = {}

    def find(self, info: TensorInfo, read: ReadTensor) -> Iterator[BasePlan]:
        """Plans for the whole tensor that are worth a larger sample; none if nothing is near.

        read: reads the tensor's bytes; its errors pass through.
        """
        if not is_searched(info) or not self._may_find(info):
            return
        for one in searched_as(info, read):
            for ranges in (self._parts(one), self._range_of_larger(one)):
                try:
                    plan = one.plan(ranges, self._read_base) if ranges else None
                except self._unreadable:
                    plan = None
                if plan is not None:
                    self._in_vain[kind_of(info.name)] = None
                    yield plan

    def _may_find(self, info: TensorInfo) -> bool:
        """Whether a search is worth its time; counts it as one in vain so far."""
        kind = kind_of(info.name)
        n = self._in_vain.setdefault(kind, 0)
        if n is None:
            return True
        if n >= MIN_SEARCHES or sum(each or 0 for each in self._in_vain.values()) >= MAX_SEARCHES:
            return False
        self._in_vain[kind] = n + 1
        return True

    def _parts(self, one: Searched) -> list[Range]:
        """Whole base tensors that are the tensor's elements back to back, from its first one on.

        Where no part is near any more, the rest has no base. One tensor of the same shape is no
        other layout, but its transpose is.
        """
        count = one.info.count
        parts = [t for t in self._candidates(one) if t.count <= count]
        if one.is_as_stored:
            parts = [t for t in parts if t.shape != one.info.shape]
        if not parts:
            return []
        order = nearest_names_first(one.info.name, parts, MAX_MISSES)
        place_of = {id(part): i for i, part in enumerate(parts)}
        found: list[Range] = []
        places: list[int] = []  # in `parts`, of what was found
        position = 0
        while position < count and len(found) < MAX_PARTS and one.misses < MAX_MISSES:
            left = count - position
            guesses = [parts[i] for i in _next_places(places, len(parts))]
            part = self._nearest(one, position, [t for t in guesses if t.count <= left], SURE)
            if part is None:
                part = self._nearest(one, position, [t for t in order if t.count <= left])
            if part is None:
                break
            places.append(place_of[id(part)])
            found.append((part, 0, part.count))
            position += part.count
        return found

    def _nearest(
        self,
        one: Searched,
        position: int,
        parts: Sequence[BaseTensor],
        minimum: float = MIN_NEARNESS,
    ) -> BaseTensor | None:
        """The part that is nearest to the tensor's elements from `position` on."""
        best, limit = None, minimum
        for part in parts:
            near = self._nearness(one, position, part, 0, part.count)
            if near >= SURE:
                return part
            if near >= limit:
                best, limit = part, near
            one.misses += 1
            if one.misses >= MAX_MISSES:
                break
        return best

    def _range_of_larger(self, one: Searched) -> list[Range]:
        """The range of a larger base tensor that is nearest to the whole tensor.

        It begins or ends at a multiple of the tensor's size: q, k and v, gate and up, and each of
        the stacked experts do.
        """
        count = one.info.count
        larger = [tensor for tensor in self._candidates(one) if tensor.count > count]
        best: list[Range] = []
        limit = MIN_NEARNESS
        misses = 0
        for whole in nearest_names_first(one.info.name, larger, MAX_MISSES):
            for first in _multiples(whole, one.info):
                near = self._nearness(one, 0, whole, first, count)
                if near >= SURE:
                    return [(whole, first, count)]
                if near >= limit:
                    best, limit = [(whole, first, count)], near
                misses += 1
                if misses >= MAX_MISSES:
                    return best
        return best

    def _candidates(self, one: Searched) -> list[BaseTensor]:
        """Tensors with rows as long as the tensor's: back to back they may be the same elements.

        A vector is a row of a matrix, and may consist of any shorter vectors.
        """
        width = one.info.shape[-1]
        found = list(self._of_width.get(width, ()))
        if len(one.info.shape) == 1:
            for other, tensors in self._of_width.items():
                if other != width:
                    found += [tensor for tensor in tensors if len(tensor.shape) == 1]
        return [tensor for tensor in found if one.may_have(tensor)]

    def _nearness(
        self, one: Searched, position: int, base: BaseTensor, first: int, count: int
    ) -> float:
        """Of `count` elements of the tensor and of the base, each from its first one on."""
        width = base.shape[-1]
        middle = (count - PROBE_ELEMENTS) // 2
        if width >= PROBE_ELEMENTS:
            middle = count // 2 // width * width  # the beginning of a row, which has one scale
        probe = self._probe(base, first + middle)
        return 0.0 if probe is None else one.nearness(position + middle, probe)

    def _probe(self, base: BaseTensor, first: int) -> U16 | None:
        key = (base.hash, first)
        if key not in self._probes:
            if len(self._probes) >= _MAX_PROBES:
                self._probes.clear()
            dtype = DType.from_name(base.dtype)
            raw = bytearray(PROBE_ELEMENTS * dtype.itemsize)
            try:
                self._read_base(base.hash, first * dtype.itemsize, memoryview(raw))
            except self._unreadable:
                self._probes[key] = None
            else:
                self._probes[key] = probe_of(dtype, raw)
        return self._probes.get(key)


def _next_places(places: Sequence[int], n: int) -> list[int]:
    """Where the next part probably is, in the order of names: as far on as the last one was."""
    if not places:
        return []
    steps = [places[-1] - places[-2]] if len(places) > 1 else []
    if len(places) > 2:  # two kinds of parts in turn, such as gate and up
        steps.append(places[-2] - places[-3])
    steps.append(1)
    found = dict.fromkeys(places[-1] + step for step in steps)
    return [place for place in found if 0 <= place < n]


def _multiples(whole: BaseTensor, info: TensorInfo) -> Iterator[int]:
    """Where ranges of the tensor's size begin, counted from the start and then from the end."""
    n, rest = divmod(whole.count, info.count)
    likely = dict.fromkeys([0, *(k for k in reversed(numbers(info.name)) if k < n)])
    for k in likely:  # an expert's number
        yield k * info.count
    for k in range(1, n):
        if k not in likely:
            yield k * info.count
    if rest:
        for k in range(1, n + 1):
            yield whole.count - k * info.count

"""How to get each tensor of a file: a local copy, a frame, or plain bytes from the hub."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from deltahub.client.records import PlannedTensor

# Bytes of one request: enough to hide a round trip, few enough to repeat.
BATCH_BYTES = 48 << 20
# With this many ids of 64 digits a request stays below the hub's limit without a token.
BATCH_TENSORS = 2000


@dataclass(frozen=True)
class Slot:
    """The place of a tensor's bytes in the file."""

    tensor: bytes
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass
class RebuildPlan:
    """Each unfinished slot, in one of four lists.

    copies: slots of tensors on this machine. waves: batches of frames; bases of a wave are local
    or come from earlier waves. ranges: adjacent slots that are requested as one range of the file.
    repeats: further slots of a tensor, copied from its first one at the end.
    """

    copies: list[Slot] = field(default_factory=list)
    waves: list[list[list[Slot]]] = field(default_factory=list)
    ranges: list[list[Slot]] = field(default_factory=list)
    repeats: list[Slot] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.copies or self.waves or self.ranges or self.repeats)


def plan_rebuild(
    slots: Iterable[Slot],
    stored: Mapping[bytes, PlannedTensor],
    local: Collection[bytes],
    *,
    has_links: bool = False,
) -> RebuildPlan:
    """The cheapest way to fill each slot. slots: the missing ones, by offset.

    local: tensors on this machine, including those already in the file. A tensor that the hub
    stores raw, or as a delta of a tensor that is not local, is requested as plain bytes, because
    then the hub decodes it and no base has to be sent. has_links: frames come from the object
    store, so that those of raw tensors are asked too.
    """
    plan = RebuildPlan()
    remote: list[Slot] = []
    seen: set[bytes] = set()
    for slot in slots:
        if slot.tensor in seen:
            plan.repeats.append(slot)
        elif slot.tensor in local:
            plan.copies.append(slot)
        else:
            seen.add(slot.tensor)
            remote.append(slot)
    waves, plain = _waves(remote, stored, local, has_links=has_links)
    plan.waves = [list(_batches(wave, stored)) for wave in waves]
    plan.ranges = list(adjacent_slots(plain))
    return plan


def _waves(
    remote: Sequence[Slot],
    stored: Mapping[bytes, PlannedTensor],
    local: Collection[bytes],
    *,
    has_links: bool,
) -> tuple[list[list[Slot]], list[Slot]]:
    waves: list[list[Slot]] = []
    made: set[bytes] = set()
    waiting: list[Slot] = []
    plain: list[Slot] = []
    for slot in remote:
        known = stored.get(slot.tensor)
        can_be_linked = has_links and known is not None and slot.size > 0
        (waiting if can_be_linked or is_worth_a_frame(slot, known) else plain).append(slot)
    # A tensor that comes as plain bytes could be a base too, but only once it has arrived. Such
    # deltas are rare (an incompressible base in the same file) and come as plain bytes too.
    while waiting:
        wave: list[Slot] = []
        later: list[Slot] = []
        for slot in waiting:
            bases = (bytes.fromhex(base) for base in stored[slot.tensor].bases)
            can_decode = all(base in local or base in made for base in bases)
            (wave if can_decode else later).append(slot)
        if not wave:
            plain = sorted(plain + later, key=lambda slot: slot.start)
            break
        waves.append(wave)
        made.update(slot.tensor for slot in wave)
        waiting = later
    return waves, plain


def is_worth_a_frame(slot: Slot, stored: PlannedTensor | None) -> bool:
    """Whether the hub sends fewer bytes for a frame than for the tensor itself."""
    return stored is not None and stored.encoded_size < slot.size


def _batches(wave: Iterable[Slot], stored: Mapping[bytes, PlannedTensor]) -> Iterable[list[Slot]]:
    batch: list[Slot] = []
    size = 0
    for slot in wave:
        encoded = stored[slot.tensor].encoded_size
        if batch and (size + encoded > BATCH_BYTES or len(batch) == BATCH_TENSORS):
            yield batch
            batch, size = [], 0
        batch.append(slot)
        size += encoded
    if batch:
        yield batch


def adjacent_slots(slots: Iterable[Slot]) -> Iterable[list[Slot]]:
    adjacent: list[Slot] = []
    for slot in slots:
        is_next = bool(adjacent) and adjacent[-1].end == slot.start
        if adjacent and (not is_next or slot.end - adjacent[0].start > BATCH_BYTES):
            yield adjacent
            adjacent = []
        adjacent.append(slot)
    if adjacent:
        yield adjacent

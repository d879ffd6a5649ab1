"""How to get each tensor of a file: from here, as a frame against what is here, or as bytes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from deltahub.client.records import PlannedTensor

# One request's worth: long enough to hide a round trip, short enough to repeat.
BATCH_BYTES = 48 << 20
# Their names, of 64 digits each, make a request that a hub takes without a token too.
BATCH_TENSORS = 2000


@dataclass(frozen=True)
class Slot:
    """A place in the file that a tensor's bytes fill."""

    tensor: bytes
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass
class RebuildPlan:
    """Every slot that is not done yet, once. Sizes of `batches` and `runs` are bytes to move.

    copies: bytes on this machine. waves: batches of frames; a wave needs only tensors that are
    here or that earlier waves make. runs: neighbours in the file, asked for as one range.
    repeats: tensors that the file holds more than once; copied from within it at the end.
    """

    copies: list[Slot] = field(default_factory=list)
    waves: list[list[list[Slot]]] = field(default_factory=list)
    runs: list[list[Slot]] = field(default_factory=list)
    repeats: list[Slot] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.copies or self.waves or self.runs or self.repeats)


def plan_rebuild(
    slots: Iterable[Slot], stored: Mapping[bytes, PlannedTensor], local: Collection[bytes]
) -> RebuildPlan:
    """The cheapest way to each slot. slots: what is missing, in order of the file.

    local: tensors on this machine, among them those already in the file. A tensor that the hub
    keeps raw, or as a delta of something that is not here, is asked for as plain bytes: the hub
    then decodes it, and no base has to be moved.
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
    waves, rest = _waves(remote, stored, local)
    plan.waves = [list(_batches(wave, stored)) for wave in waves]
    plan.runs = list(_runs(rest))
    return plan


def _waves(
    remote: Sequence[Slot], stored: Mapping[bytes, PlannedTensor], local: Collection[bytes]
) -> tuple[list[list[Slot]], list[Slot]]:
    waves: list[list[Slot]] = []
    made: set[bytes] = set()
    waiting = [slot for slot in remote if _is_worth_a_frame(slot, stored.get(slot.tensor))]
    rest = [slot for slot in remote if not _is_worth_a_frame(slot, stored.get(slot.tensor))]
    # What comes as plain bytes can be a base as well, but only after it has come: such deltas
    # are rare (both in one file, the base incompressible) and take the plain way too.
    while waiting:
        wave: list[Slot] = []
        later: list[Slot] = []
        for slot in waiting:
            bases = (bytes.fromhex(base) for base in stored[slot.tensor].bases)
            can_decode = all(base in local or base in made for base in bases)
            (wave if can_decode else later).append(slot)
        if not wave:
            rest = sorted(rest + later, key=lambda slot: slot.start)
            break
        waves.append(wave)
        made.update(slot.tensor for slot in wave)
        waiting = later
    return waves, rest


def _is_worth_a_frame(slot: Slot, stored: PlannedTensor | None) -> bool:
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


def _runs(slots: Iterable[Slot]) -> Iterable[list[Slot]]:
    run: list[Slot] = []
    for slot in slots:
        is_next = bool(run) and run[-1].end == slot.start
        if run and (not is_next or slot.end - run[0].start > BATCH_BYTES):
            yield run
            run = []
        run.append(slot)
    if run:
        yield run

"""The plan of a garbage collection: what it deletes, in order.

Rows are deleted before objects. First gc deletes a tensor's row. Then it condemns the pack that
holds no live frame, and deletes the pack once no reader can still read it. A crash therefore leaves
garbage that the next run finds, never a row without its object.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from deltahub.codecs.frames.pack import live_pack_bytes
from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import Frame, Landing, Pack, XetRange, Xorb, utc_now
from deltahub.registry.db.tables.scrub import PackCopy
from deltahub.registry.db.tables.stores import DeferredDeletion
from deltahub.registry.db.tables.suspects import Suspect
from deltahub.registry.maintenance.gc.candidates import Candidates, Waiting
from deltahub.registry.maintenance.gc.conditions import (
    Moment,
    pack_is_abandoned,
    pack_is_past_lease,
    suspects,
)
from deltahub.registry.maintenance.gc.doubts import (
    SEEN_PACKS,
    clock_doubts,
    damage_doubts,
    missing_objects,
    packs_to_see,
)
from deltahub.registry.maintenance.gc.leftovers import (
    LEFTOVER_AGE,
    is_spooled,
    local_leftovers,
    unowned_tails,
)
from deltahub.registry.maintenance.gc.xet import range_is_dead
from deltahub.registry.maintenance.object_rows import lasting_objects
from deltahub.registry.registry import Registry
from deltahub.registry.replicas.copies import leftover_copies
from deltahub.registry.replicas.need import unneeded_copies
from deltahub.registry.retention.rules import Due, find_due
from deltahub.registry.storage.base import ObjectNotFound, Store
from deltahub.registry.storage.keys import (
    is_hub_key,
    landing_key,
    pack_key,
    second_copy_key,
    xorb_key,
)

# A pack with a smaller live share than this is repacked: its live frames are copied.
REPACK_BELOW = 0.7


@dataclass(frozen=True)
class Item:
    """An object, row or file to delete, and the bytes that this frees."""

    id: str
    size_bytes: int


@dataclass(frozen=True)
class UnfinishedPut(Item):
    """What a put has written that is no object: see Unfinished. modified_at: ISO 8601."""

    key: str
    modified_at: str


@dataclass(frozen=True)
class Plan:
    """The steps of a collection in order; then, from `unknown` on, what it keeps.

    repack: packs whose live frames are copied to new packs. copies: second copies that are not
    needed. tails: ends of unfinished uploads that no row names. sparse: live packs with too few
    dead bytes for a repack. anchors: tensors in no file that deltas still need. reasons: why
    uploads and tensors go -> their bytes. rules: what rules of retention drop first. doubts:
    reasons not to apply the plan.
    """

    made_at: str
    lease_s: float
    grace_s: float
    revision_grace_s: float
    is_impatient: bool = False
    revisions: tuple[int, ...] = ()
    uploads: tuple[Item, ...] = ()
    xorbs: tuple[Item, ...] = ()
    xet_ranges: tuple[int, ...] = ()
    files: tuple[int, ...] = ()
    tensors: tuple[int, ...] = ()
    tensor_bytes: int = 0
    abandoned: tuple[Item, ...] = ()
    condemn: tuple[Item, ...] = ()
    repack: tuple[Item, ...] = ()
    delete: tuple[Item, ...] = ()
    copies: tuple[Item, ...] = ()
    leftovers: tuple[Item, ...] = ()
    unfinished: tuple[UnfinishedPut, ...] = ()
    tails: tuple[Item, ...] = ()
    unknown: tuple[Item, ...] = ()
    anchors: int = 0
    anchor_bytes: int = 0
    sparse: tuple[Item, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    reasons: dict[str, int] = field(default_factory=dict)
    rules: tuple[Due, ...] = ()
    doubts: tuple[str, ...] = field(default=())

    @property
    def freed_bytes(self) -> int:
        """Bytes that this collection frees at once."""
        at_once = (
            *self.uploads,
            *self.xorbs,
            *self.delete,
            *self.copies,
            *self.leftovers,
            *self.unfinished,
            *self.tails,
        )
        return _total(at_once)

    @property
    def later_bytes(self) -> int:
        """Bytes of packs condemned now, which later collections free after the lease."""
        deleted = {item.id for item in self.delete}
        condemned = (*self.abandoned, *self.condemn, *self.repack)
        return _total(item for item in condemned if item.id not in deleted)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that later collections delete unless something refers to them by then."""
        return _total(self.waiting)

    def as_dict(self) -> dict[str, object]:
        """The plan as plain data, for JSON."""
        totals = {
            "freed_bytes": self.freed_bytes,
            "later_bytes": self.later_bytes,
            "waiting_bytes": self.waiting_bytes,
        }
        return {**asdict(self), **totals}


def plan_gc(
    reg: Registry,
    *,
    lease_s: float | None = None,
    grace_s: float | None = None,
    revision_grace_s: float | None = None,
    clock_was_ahead: bool = False,
    is_full: bool = False,
    is_impatient: bool = False,
) -> Plan:
    """The plan of a collection at this moment. Changes nothing.

    It looks at what is new, or has lost a reference, since the last collection. is_full: at all
    rows, and at all objects of the store, for those without a row.
    lease_s: seconds that condemned packs are kept for readers (default: settings.read_lease_s).
    grace_s: seconds that unreferenced rows are kept (default: settings.hold_ttl_s).
    revision_grace_s: seconds in which a dropped revision can be taken back (default:
    settings.revision_grace_s). clock_was_ahead: rows of the future are no doubt, because the
    operator trusts the clock. is_impatient: see Moment.
    """
    settings = reg.settings
    moment = moment_now(
        settings.read_lease_s if lease_s is None else lease_s,
        settings.hold_ttl_s if grace_s is None else grace_s,
        settings.revision_grace_s if revision_grace_s is None else revision_grace_s,
        is_full=is_full,
        is_impatient=is_impatient,
    )
    leftover_age = timedelta(0) if is_impatient else max(moment.lease, LEFTOVER_AGE)
    doubts: list[str] = []
    objects = {item.key: item.size for item in lasting_objects(reg.store)} if is_full else {}
    with reg.db.read() as session:
        doubts += damage_doubts(reg)
        if not clock_was_ahead:
            doubts += clock_doubts(session, moment)
        packs = packs_to_see(session, None if is_full else SEEN_PACKS)
        doubts += missing_objects(packs, reg.store, objects)
        candidates = Candidates(session, moment)
        revisions = candidates.revisions()
        files = candidates.files()
        uploads = candidates.uploads(
            lambda upload: _size(reg.store, landing_key(upload)) + (reg.spool.size(upload) or 0)
        )
        xorbs = candidates.xorbs()
        dead, anchors = candidates.tensors()
        past_lease = candidates.packs("condemned packs", pack_is_past_lease, Pack.condemned_at)
        abandoned = candidates.packs("packs not finished yet", pack_is_abandoned, Pack.created_at)
        mostly, sparse, empty = _packs_after_deletion(
            session, moment, [tensor for tensor, _ in dead]
        )
        mostly_dead = candidates.sort(
            "young packs, mostly dead",
            ((pack, size, created_at + moment.lease) for pack, size, created_at in mostly),
        )
        leftovers = candidates.sort(
            "local files without an owner, perhaps", local_leftovers(session, reg, leftover_age)
        )
        unfinished = _unfinished(session, reg.store, candidates, leftover_age)
        tails = candidates.sort(
            "ends of unfinished uploads, perhaps", unowned_tails(session, reg.store, leftover_age)
        )
        ranges = tuple(session.scalars(select(XetRange.id).where(range_is_dead())))
        copies = leftover_copies(session)
        copies += unneeded_copies(session, settings.second_copy_dependents)
        unknown = _unknown_objects(session, objects)
        reasons = candidates.reasons(files, uploads, dead)
        rules = tuple(find_due(session))
    condemn = [pack for pack in mostly_dead if pack[0] in empty]
    repack = [pack for pack in mostly_dead if pack[0] not in empty]
    if moment.lease <= timedelta(0):
        past_lease += [*abandoned, *condemn, *repack]
    return Plan(
        made_at=moment.now.isoformat(),
        lease_s=moment.lease.total_seconds(),
        grace_s=moment.grace.total_seconds(),
        revision_grace_s=moment.revision_grace.total_seconds(),
        is_impatient=moment.is_impatient,
        revisions=tuple(revision for revision, _ in revisions),
        uploads=_items(uploads),
        xorbs=_items(xorbs),
        xet_ranges=ranges,
        files=tuple(file for file, _ in files),
        tensors=tuple(tensor for tensor, _ in dead),
        tensor_bytes=sum(size for _, size in dead),
        abandoned=_items(abandoned),
        condemn=_items(condemn),
        repack=_items(repack),
        delete=_items(past_lease),
        copies=_items(dict(copies).items()),
        leftovers=_items(leftovers),
        unfinished=unfinished,
        tails=_items(tails),
        unknown=_items(unknown),
        anchors=len(anchors),
        anchor_bytes=sum(size for _, size in anchors),
        sparse=_items(sparse),
        waiting=tuple(candidates.waiting),
        reasons=reasons,
        rules=rules,
        doubts=tuple(doubts),
    )


def moment_now(
    lease_s: float,
    grace_s: float,
    revision_grace_s: float,
    *,
    is_full: bool = False,
    is_impatient: bool = False,
) -> Moment:
    grace, lease, dropped = (
        timedelta(seconds=each) for each in (grace_s, lease_s, revision_grace_s)
    )
    return Moment(utc_now(), grace, lease, dropped, is_full, is_impatient)


def _total(items: Iterable[Item | Waiting]) -> int:
    return sum(item.size_bytes for item in items)


def _items(found: Iterable[tuple[str, int]]) -> tuple[Item, ...]:
    return tuple(Item(*each) for each in found)


def _packs_after_deletion(
    session: Session, moment: Moment, dead: Iterable[int]
) -> tuple[list[tuple[str, int, datetime]], list[tuple[str, int]], set[str]]:
    """(mostly dead, sparse, empty): live packs with dead bytes, once the dead tensors are deleted.

    mostly dead: (id, dead bytes, time of creation) of packs to condemn or to repack. sparse:
    (id, dead bytes) of packs with too few dead bytes for that. empty: ids of mostly dead packs
    without a live frame. A damaged pack with a live frame is in none of them.
    """
    dead_frames: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for batch in batches(dead):
        for pack, count, size in session.execute(
            select(Frame.pack_id, func.count(), total(Frame.length))
            .where(Frame.tensor_id.in_(batch))
            .group_by(Frame.pack_id)
        ):
            known_count, known_size = dead_frames[pack]
            dead_frames[pack] = (known_count + count, known_size + size)
    mostly_dead: list[tuple[str, int, datetime]] = []
    sparse: list[tuple[str, int]] = []
    empty: set[str] = set()
    query = (
        select(
            Pack.id,
            Pack.size,
            Pack.created_at,
            Pack.state,
            func.count(Frame.pack_id),
            total(Frame.length),
        )
        .outerjoin(Frame, Frame.pack_id == Pack.id)
        .where(Pack.state.in_(("live", "damaged")))
        .group_by(Pack.id, Pack.size, Pack.created_at, Pack.state)
    )
    rows = list(session.execute(query.where(Pack.id.in_(suspects(moment, Suspect.pack_id)))))
    others = set(dead_frames).difference(row[0] for row in rows)
    for packs in batches(sorted(others)):
        rows += session.execute(query.where(Pack.id.in_(packs)))
    for pack, size, created_at, state, count, frame_bytes in sorted(rows):
        dead_count, dead_bytes = dead_frames.get(pack, (0, 0))
        needed = live_pack_bytes(count - dead_count, frame_bytes - dead_bytes)
        if count == dead_count:
            empty.add(pack)
            mostly_dead.append((pack, size, created_at))
        elif state == "damaged":
            continue  # a copy of its bytes could make damage look whole
        elif needed < (1 if moment.is_impatient else REPACK_BELOW) * size:
            mostly_dead.append((pack, size - needed, created_at))
        elif needed < size:
            sparse.append((pack, size - needed))
    return mostly_dead, sparse, empty


def _size(store: Store, key: str) -> int:
    try:
        return store.size(key)
    except ObjectNotFound:
        return 0


def _unfinished(
    session: Session, store: Store, candidates: Candidates, age: timedelta
) -> tuple[UnfinishedPut, ...]:
    """Puts that have not grown for so long: a running process gives up long before.

    Those of unfinished uploads go with these, however long their clients are away.
    """
    found = {
        put.id: put
        for put in store.unfinished()
        if (not put.key or is_hub_key(put.key)) and not is_spooled(session, put.id)
    }
    due = candidates.sort(
        "puts that have not ended yet",
        ((put.id, put.size, put.modified_at + age) for put in found.values()),
    )
    puts = [found[put_id] for put_id, _ in due]
    return tuple(
        UnfinishedPut(put.id, put.size, put.key, put.modified_at.isoformat()) for put in puts
    )


def _unknown_objects(session: Session, objects: dict[str, int]) -> Iterator[tuple[str, int]]:
    known = {pack_key(pack_id) for pack_id in session.scalars(select(Pack.id))}
    known.update(landing_key(landing_id) for landing_id in session.scalars(select(Landing.id)))
    known.update(second_copy_key(copy_id) for copy_id in session.scalars(select(PackCopy.id)))
    known.update(xorb_key(xorb_id) for xorb_id in session.scalars(select(Xorb.id)))
    known.update(session.scalars(select(DeferredDeletion.key)))
    return ((key, size) for key, size in objects.items() if key not in known)

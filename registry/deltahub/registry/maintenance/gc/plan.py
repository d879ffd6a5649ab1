"""Collecting garbage: the plan, which is data, and the order in which it is carried out.

Rows go first and objects later: a tensor's row, then the pack that holds nothing any more, which
is condemned, and deleted once no reader can still be reading it. A crash leaves rubbish that the
next run finds again, never a row without its object.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from stat import S_ISREG

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from deltahub.codecs.frames.pack import live_pack_bytes
from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import File, Frame, Landing, Pack, XetRange, Xorb, utc_now
from deltahub.registry.maintenance.gc.conditions import (
    Moment,
    file_is_dead,
    find_unneeded_tensors,
    landing_is_dead,
    pack_is_abandoned,
    pack_is_past_lease,
)
from deltahub.registry.maintenance.gc.waiting import Waiting, find_waiting, in_one
from deltahub.registry.maintenance.gc.xet import range_is_dead, xorb_is_dead
from deltahub.registry.registry import Registry
from deltahub.registry.sizes import human_size
from deltahub.registry.storage.base import ObjectNotFound, Store
from deltahub.registry.storage.keys import landing_key, pack_key, xorb_key

# A pack is written anew once less than this share of it is still needed.
REPACK_BELOW = 0.7
# A clock that ran this far back would make everything look older than it is.
CLOCK_SLACK = timedelta(minutes=5)
# Local files younger than this may belong to a step that is still running (docs/cli.md).
LEFTOVER_AGE = timedelta(days=1)


@dataclass(frozen=True)
class Item:
    """One thing to act on, and the bytes that it gives back."""

    id: str
    size_bytes: int


@dataclass(frozen=True)
class Plan:
    """What a collection would do, in the order in which it would do it; then what it leaves.

    sparse: live packs with dead bytes in them, too few to write the packs anew.
    """

    made_at: str
    lease_s: float
    grace_s: float
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
    leftovers: tuple[Item, ...] = ()
    unknown: tuple[Item, ...] = ()
    anchors: int = 0
    anchor_bytes: int = 0
    sparse: tuple[Item, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    doubts: tuple[str, ...] = field(default=())

    @property
    def freed_bytes(self) -> int:
        """What carrying out the plan gives back at once."""
        at_once = (*self.uploads, *self.xorbs, *self.delete, *self.leftovers)
        return _total(at_once)

    @property
    def later_bytes(self) -> int:
        """What runs after the lease give back because of this one."""
        deleted = {item.id for item in self.delete}
        condemned = (*self.abandoned, *self.condemn, *self.repack)
        return _total(item for item in condemned if item.id not in deleted)

    @property
    def waiting_bytes(self) -> int:
        """What later runs take unless something refers to it by then."""
        return _total(self.waiting)

    def as_dict(self) -> dict[str, object]:
        """The plan as plain data, for JSON."""
        totals = {
            "freed_bytes": self.freed_bytes,
            "later_bytes": self.later_bytes,
            "waiting_bytes": self.waiting_bytes,
        }
        return {**asdict(self), **totals}

    def lines(self) -> Iterator[str]:
        """The plan as a person reads it."""
        rows = (
            ("expired uploads to delete", len(self.uploads), _total(self.uploads)),
            ("expired xorbs to delete", len(self.xorbs), _total(self.xorbs)),
            ("files that no revision lists", len(self.files), 0),
            ("tensors that nothing needs", len(self.tensors), self.tensor_bytes),
            ("packs never finished, to condemn", len(self.abandoned), _total(self.abandoned)),
            ("empty packs to condemn", len(self.condemn), _total(self.condemn)),
            ("packs to write anew without their dead bytes", len(self.repack), _total(self.repack)),
            ("condemned packs to delete", len(self.delete), _total(self.delete)),
            ("leftover local files to delete", len(self.leftovers), _total(self.leftovers)),
            ("unnamed anchors kept because deltas need them", self.anchors, self.anchor_bytes),
            ("packs with too few dead bytes to write anew", len(self.sparse), _total(self.sparse)),
            ("objects that no row knows (reported only)", len(self.unknown), _total(self.unknown)),
        )
        for text, count, size in rows:
            if count:
                yield f"{text}: {count} ({human_size(size)})"
        for item in self.waiting:
            until = datetime.fromisoformat(item.until)
            yield (
                f"waiting, {item.what}: {item.count} ({human_size(item.size_bytes)}), "
                f"until {until:%F %T} UTC"
            )
        yield (
            f"frees {human_size(self.freed_bytes)} now, {human_size(self.later_bytes)} after the "
            f"lease; {human_size(self.waiting_bytes)} wait"
        )
        for doubt in self.doubts:
            yield f"doubt: {doubt}"


def plan_gc(reg: Registry, *, lease_s: float | None = None, grace_s: float | None = None) -> Plan:
    """What may go now, without touching anything.

    lease_s: how long condemned packs wait for their readers (default: settings.read_lease_s).
    grace_s: how long rows wait for what will refer to them (default: settings.hold_ttl_s).
    """
    settings = reg.settings
    moment = moment_now(
        settings.read_lease_s if lease_s is None else lease_s,
        settings.hold_ttl_s if grace_s is None else grace_s,
    )
    doubts: list[str] = []
    objects = {item.key: item.size for item in reg.store.list("")}
    with reg.db.read() as session:
        doubts += _clock_doubts(session, moment)
        doubts += _missing_objects(session, reg.store, objects)
        dead, anchors = find_unneeded_tensors(session, moment)
        dead_frames = _frame_bytes_by_pack(session, dead)
        abandoned = _items(session, pack_is_abandoned(moment))
        past_lease = _items(session, pack_is_past_lease(moment))
        packs = _packs_after(session, moment, dead_frames)

        def upload_bytes(upload: str) -> int:
            return objects.get(landing_key(upload), 0) + (reg.spool.size(upload) or 0)

        uploads = [
            Item(upload, upload_bytes(upload))
            for upload in session.scalars(select(Landing.id).where(landing_is_dead(moment)))
        ]
        expired = session.execute(select(Xorb.id, Xorb.size).where(xorb_is_dead(moment)))
        expired_xorbs = tuple(Item(xorb_id, size) for xorb_id, size in expired)
        ranges = tuple(session.scalars(select(XetRange.id).where(range_is_dead())))
        waiting = list(find_waiting(session, moment, upload_bytes))
        waiting += in_one("young packs, mostly dead", packs.young)
        files = tuple(session.scalars(select(File.id).where(file_is_dead(moment))))
        unknown = _unknown_objects(session, objects)
        leftovers, young_files = _leftovers(session, reg, moment)
        waiting += in_one("local files without an owner, perhaps", young_files)
        anchor_frames = _frame_bytes_by_pack(session, anchors)
    if moment.lease <= timedelta(0):
        past_lease += [*abandoned, *packs.empty, *packs.mostly_dead]
    return Plan(
        made_at=moment.now.isoformat(),
        lease_s=moment.lease.total_seconds(),
        grace_s=moment.grace.total_seconds(),
        uploads=tuple(uploads),
        xorbs=expired_xorbs,
        xet_ranges=ranges,
        files=files,
        tensors=tuple(dead),
        tensor_bytes=sum(size for _, size in dead_frames.values()),
        abandoned=tuple(abandoned),
        condemn=tuple(packs.empty),
        repack=tuple(packs.mostly_dead),
        delete=tuple(past_lease),
        leftovers=tuple(leftovers),
        unknown=tuple(unknown),
        anchors=len(anchors),
        anchor_bytes=sum(size for _, size in anchor_frames.values()),
        sparse=tuple(packs.sparse),
        waiting=tuple(waiting),
        doubts=tuple(doubts),
    )


def moment_now(lease_s: float, grace_s: float) -> Moment:
    return Moment(utc_now(), timedelta(seconds=grace_s), timedelta(seconds=lease_s))


def _total(items: Iterable[Item | Waiting]) -> int:
    return sum(item.size_bytes for item in items)


def _items(session: Session, condition: ColumnElement[bool]) -> list[Item]:
    rows = session.execute(select(Pack.id, Pack.size).where(condition).order_by(Pack.id))
    return [Item(pack_id, size) for pack_id, size in rows]


def _frame_bytes_by_pack(session: Session, tensors: Iterable[int]) -> dict[str, tuple[int, int]]:
    """pack -> (frames, bytes) of these tensors in it."""
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for batch in batches(tensors):
        rows = session.execute(
            select(Frame.pack_id, func.count(), total(Frame.length))
            .where(Frame.tensor_id.in_(batch))
            .group_by(Frame.pack_id)
        )
        for pack_id, count, size in rows:
            known_count, known_size = found[pack_id]
            found[pack_id] = (known_count + count, known_size + size)
    return found


@dataclass(frozen=True)
class _Packs:
    """Live packs with dead bytes. sparse: too few of them; young: (dead bytes, due when)."""

    empty: list[Item] = field(default_factory=list)
    mostly_dead: list[Item] = field(default_factory=list)
    sparse: list[Item] = field(default_factory=list)
    young: list[tuple[int, datetime]] = field(default_factory=list)


def _packs_after(session: Session, moment: Moment, dead: dict[str, tuple[int, int]]) -> _Packs:
    """Live packs as they will be without the dead tensors' frames."""
    packs = _Packs()
    rows = session.execute(
        select(Pack.id, Pack.size, Pack.created_at, func.count(Frame.pack_id), total(Frame.length))
        .outerjoin(Frame, Frame.pack_id == Pack.id)
        .where(Pack.state == "live")
        .group_by(Pack.id, Pack.size, Pack.created_at)
        .order_by(Pack.id)
    )
    for pack_id, size, created_at, count, frame_bytes in rows:
        dead_count, dead_bytes = dead.get(pack_id, (0, 0))
        needed = live_pack_bytes(count - dead_count, (frame_bytes or 0) - dead_bytes)
        is_empty = count == dead_count
        item = Item(pack_id, size if is_empty else size - needed)
        if not is_empty and needed >= REPACK_BELOW * size:
            if needed < size:
                packs.sparse.append(item)
        elif created_at >= moment.lease_start:
            packs.young.append((item.size_bytes, created_at + moment.lease))
        elif is_empty:
            packs.empty.append(item)
        else:
            packs.mostly_dead.append(item)
    return packs


def _clock_doubts(session: Session, moment: Moment) -> Iterator[str]:
    for table in (Pack, Landing, File, Xorb):
        newest = session.scalar(select(func.max(table.created_at)))
        if newest is not None and newest > moment.now + CLOCK_SLACK:
            yield (
                f"{table.__tablename__} has a row made at {newest.isoformat()}, but this machine's "
                f"clock says {moment.now.isoformat()}: set the clock, then run gc again"
            )


def _missing_objects(session: Session, store: Store, objects: dict[str, int]) -> Iterator[str]:
    """One sentence when live packs have no whole object: this may be the wrong folder."""
    missing = []
    for pack_id, size in session.execute(select(Pack.id, Pack.size).where(Pack.state == "live")):
        if objects.get(pack_key(pack_id)) == size:
            continue
        try:  # written since the store was listed, perhaps
            is_whole = store.size(pack_key(pack_id)) == size
        except ObjectNotFound:
            is_whole = False
        if not is_whole:
            missing.append(pack_id)
    if missing:
        yield (
            f"{len(missing)} live packs (the first is {missing[0]}) are missing from the store or "
            "cut short: is this the right data folder? run deltahub fsck before collecting"
        )


def _leftovers(
    session: Session, reg: Registry, moment: Moment
) -> tuple[list[Item], list[tuple[int, datetime]]]:
    """(old, young): scratch files, and spooled bytes without an upload. young: (bytes, due when).

    A dead process left the old ones; those that are younger may have an owner.
    """
    age = max(moment.lease, LEFTOVER_AGE)
    old: list[Item] = []
    young: list[tuple[int, datetime]] = []
    scratch = sorted(reg.scratch.iterdir())
    orphans = [u for u in reg.spool.list() if session.get(Landing, u) is None]
    for name, path in [
        *((f"scratch/{path.name}", path) for path in scratch),
        *((f"spool/{upload}", reg.spool.path(upload)) for upload in orphans),
    ]:
        try:
            found = path.stat()
        except FileNotFoundError:
            continue  # its owner was quicker
        due = datetime.fromtimestamp(found.st_mtime, UTC) + age
        if S_ISREG(found.st_mode) and due < moment.now:
            old.append(Item(name, found.st_size))
        elif S_ISREG(found.st_mode):
            young.append((found.st_size, due))
    return old, young


def _unknown_objects(session: Session, objects: dict[str, int]) -> list[Item]:
    known = {pack_key(pack_id) for pack_id in session.scalars(select(Pack.id))}
    known.update(landing_key(landing_id) for landing_id in session.scalars(select(Landing.id)))
    known.update(xorb_key(xorb_id) for xorb_id in session.scalars(select(Xorb.id)))
    return [Item(key, size) for key, size in objects.items() if key not in known]

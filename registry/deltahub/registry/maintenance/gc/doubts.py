"""Reasons not to collect garbage: a damaged database, a wrong clock, the wrong folder."""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from deltahub.registry.db.integrity import file_damage
from deltahub.registry.db.models import Pack
from deltahub.registry.maintenance.clock import dates_ahead
from deltahub.registry.maintenance.gc.conditions import Moment
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound, Store
from deltahub.registry.storage.keys import pack_key

# Live packs that a plan looks for in the store.
SEEN_PACKS: Final = 100


def damage_doubts(reg: Registry) -> Iterator[str]:
    """A doubt if an index of the database may hide the rows that need an object."""
    for sentence in file_damage(reg.db, most=1):
        yield f"the database is damaged ({sentence}): run deltahub fsck, which says where"


def clock_doubts(session: Session, moment: Moment) -> Iterator[str]:
    for table, newest in dates_ahead(session, moment.now):
        yield (
            f"{table} has a row of {newest:%F %T} UTC, but this machine's clock says "
            f"{moment.now:%F %T}: if the clock is wrong, set it and run gc again; if it is right "
            "and was ahead before, run gc with --clock-was-ahead"
        )


def packs_to_see(session: Session, most: int | None) -> Sequence[tuple[str, int]]:
    """(id, bytes) of live packs: all, or as many from a random place on."""
    query = select(Pack.id, Pack.size).where(Pack.state == "live").order_by(Pack.id).limit(most)
    if most is None:
        return session.execute(query).all()
    found = session.execute(query.where(Pack.id >= secrets.token_hex(16))).all()
    return found if len(found) == most else [*found, *session.execute(query).all()]


def missing_objects(
    packs: Iterable[tuple[str, int]], store: Store, objects: dict[str, int]
) -> Iterator[str]:
    """A doubt if objects of these packs are missing or short: this may be the wrong folder."""
    missing = []
    for pack_id, size in packs:
        if objects.get(pack_key(pack_id)) == size:
            continue
        try:  # the object may be newer than the list of objects
            is_whole = store.size(pack_key(pack_id)) == size
        except ObjectNotFound:
            is_whole = False
        if not is_whole:
            missing.append(pack_id)
    if missing := list(dict.fromkeys(missing)):
        yield (
            f"{len(missing)} live packs (the first is {missing[0]}) are missing from the store or "
            "cut short: is this the right data folder, and is its disk there? If they are lost for "
            "good, run `deltahub fsck --repair`, which marks what is lost; then collect"
        )

"""Says where the hub's objects lie."""

from contextlib import closing
from dataclasses import asdict, dataclass

from deltahub.registry.maintenance.object_rows import hub_objects
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import StoreError
from deltahub.registry.stores.current import StoreOpener
from deltahub.registry.stores.places import Place, Places, places_left, read_places


@dataclass(frozen=True)
class ShownPlace:
    """One place. state: current, previous, target or left. error: why it could not be read."""

    place: str
    state: str
    since: str | None
    objects: int | None = None
    bytes: int | None = None
    error: str | None = None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def show(reg: Registry) -> list[ShownPlace]:
    """The places that the hub uses, with the number and bytes of their objects; then those left."""
    with reg.db.read() as session:
        places = read_places(session)
        left = places_left(session)
    used = [] if places is None else [_counted(reg, p, _state(places, p)) for p in _used(places)]
    return [*used, *(_shown(place, "left") for place in left)]


def _used(places: Places) -> tuple[Place, ...]:
    others = (places.previous, places.target)
    return (places.current, *(place for place in others if place is not None))


def _state(places: Places, place: Place) -> str:
    if place == places.current:
        return "current"
    return "previous" if place == places.previous else "target"


def _counted(reg: Registry, place: Place, state: str) -> ShownPlace:
    count = size = 0
    try:
        opener = StoreOpener(reg.db, reg.data_dir, reg.settings, reg.disk, is_read_only=True)
        with closing(opener.place(place)) as store:
            for info in hub_objects(store):
                count, size = count + 1, size + info.size
    except StoreError as exc:
        return _shown(place, state, error=str(exc))
    return _shown(place, state, count, size)


def _shown(
    place: Place,
    state: str,
    objects: int | None = None,
    size: int | None = None,
    error: str | None = None,
) -> ShownPlace:
    since = None if place.since is None else place.since.isoformat()
    return ShownPlace(place.name, state, since, objects, size, error)

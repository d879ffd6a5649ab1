"""Tells a lost object from a store that is away."""

from collections.abc import Collection

from deltahub.registry.errors import Unavailable
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound, StoreUnavailable
from deltahub.registry.storage.keys import pack_key


class StoreSeemsAway(Unavailable):
    """The store does not answer, or more packs are missing than a loss would explain."""


def is_missing(reg: Registry, pack_id: str) -> bool:
    """Whether the store says that it has no such pack; StoreSeemsAway."""
    return not is_of_size(reg, pack_id, None)


def is_of_size(reg: Registry, pack_id: str, size: int | None) -> bool:
    """Whether the store has the pack, in the given size unless that is None."""
    try:
        found = reg.store.size(pack_key(pack_id))
    except ObjectNotFound:
        return False
    except StoreUnavailable as exc:
        raise StoreSeemsAway(str(exc)) from exc
    return size is None or found == size


def check_sample(reg: Registry, pack_ids: Collection[str]) -> None:
    """StoreSeemsAway if the store lacks more than half of these packs, which it should have."""
    check_store_is_there(sum(is_missing(reg, pack_id) for pack_id in pack_ids), len(pack_ids))


def check_store_is_there(n_missing: int, n_packs: int) -> None:
    """StoreSeemsAway if more than half of the packs are missing."""
    if 2 * n_missing > n_packs:
        raise StoreSeemsAway(
            f"{n_missing} of {n_packs} packs are missing from the store: this may be another data "
            "folder, or the disk of its objects is away. If they are lost for good, run `deltahub "
            "fsck --repair --accept-loss`"
        )

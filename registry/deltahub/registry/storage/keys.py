"""Builds all keys of the store. No other module may build one."""

import re
from functools import lru_cache

from deltahub.registry.storage.base import InvalidKey

PACKS = "packs/"
LANDINGS = "landing/"
XORBS = "xorbs/"
COPIES = "copies/"
SPOOL = "spool/"
MAX_KEY = 200

_PART = re.compile(r"[a-z0-9][a-z0-9._-]*")
_ID = re.compile(r"[0-9a-f]{32}")
_HUB_KEY = re.compile(
    r"(?:landing/|spool/|(?:packs|xorbs|copies)/([0-9a-f]{2})/(?=\1))[0-9a-f]{32}"
)


def pack_key(pack_id: str) -> str:
    """The key of a pack. The first two digits of its random id spread packs over 256 folders."""
    return f"{PACKS}{_checked_id(pack_id)[:2]}/{pack_id}"


def landing_key(landing_id: str) -> str:
    """The key of a complete upload, which exists until it is ingested."""
    return f"{LANDINGS}{_checked_id(landing_id)}"


def xorb_key(xorb_id: str) -> str:
    """The key of a xorb, which exists until it expires."""
    return f"{XORBS}{_checked_id(xorb_id)[:2]}/{xorb_id}"


def second_copy_key(copy_id: str) -> str:
    """The key of a second copy, by its own random id: a later copy of the pack has another key."""
    return f"{COPIES}{_checked_id(copy_id)[:2]}/{copy_id}"


def spool_key(random_id: str) -> str:
    """The key of bytes of an unfinished upload. Each has a random id, which is never given again:
    who writes or deletes late does not touch what came after.
    """
    return f"{SPOOL}{_checked_id(random_id)}"


@lru_cache(1024)  # reads use the same few packs again and again
def check_key(key: str) -> str:
    """The key itself, or InvalidKey: parts of lower-case letters, digits and ._- between slashes.

    No part begins with a dot, so that no key leaves the store or names its temporary files.
    """
    if not is_key(key):
        raise InvalidKey(f"{key[:MAX_KEY]!r} is no key of an object")
    return key


def is_key(key: str) -> bool:
    return len(key) <= MAX_KEY and all(_PART.fullmatch(part) for part in key.split("/"))


def is_hub_key(key: str) -> bool:
    """Whether a function of this module builds this key.

    Other objects below a hub's prefix are not its own: a backup or another hub may lie there.
    """
    return _HUB_KEY.fullmatch(key) is not None


def check_prefix(prefix: str) -> str:
    """The prefix itself; InvalidKey unless it is empty or the beginning of a valid key."""
    if prefix:
        check_key(prefix.removesuffix("/"))
    return prefix


def _checked_id(random_id: str) -> str:
    if not _ID.fullmatch(random_id):
        raise InvalidKey(f"{random_id[:64]!r} is no id of 32 hex digits")
    return random_id

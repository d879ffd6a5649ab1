"""The limit of open files of this process, which connections share with everything else."""

import logging
import sys
from typing import Final

if sys.platform != "win32":
    import resource

log = logging.getLogger(__name__)

# Files beside connections: the database, and the packs and spools of all transfers at once.
_OTHER_FILES: Final = 1024


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit, where the system lets us."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS has a lower limit of its own
        log.warning("the limit of open files stays at %d: %s", soft, error)


def connections_within(wanted: int) -> int:
    """Return how many connections may be open: `wanted`, or what the limit of open files leaves."""
    if sys.platform == "win32":
        return wanted
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    room = soft - min(soft // 2, _OTHER_FILES)
    if room < wanted:
        log.warning(
            "open files are limited to %d: at most %d connections, not %d (raise `ulimit -Hn`)",
            soft, room, wanted,
        )  # fmt: skip
    return min(wanted, room)

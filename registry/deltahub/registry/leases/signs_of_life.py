"""When a worker last looked for jobs: the time of a file, or of a lease in a shared database."""

import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from deltahub.registry.data_folder import WORKER_LOCK
from deltahub.registry.leases.lease import live, seconds_since_look
from deltahub.registry.registry import Registry

SEEN_FILE: Final = "worker.seen"
ABOUT_FILE: Final = "worker.about"
log = logging.getLogger(__name__)


def mark_seen(reg: Registry) -> None:
    """Note that the hub's only worker has looked for jobs just now."""
    try:
        (reg.data_dir / SEEN_FILE).touch()
    except OSError as error:  # no room for the file: then nobody sees the worker
        log.warning("%s cannot be touched: %s", SEEN_FILE, error)


def write_about(reg: Registry, about: Mapping[str, Any]) -> None:
    """Note what the hub's only worker says of itself, for people."""
    text = json.dumps({**about, "pid": os.getpid(), "begun_at": time.time()})
    try:
        (reg.data_dir / ABOUT_FILE).write_text(text)
    except OSError as error:
        log.warning("%s cannot be written: %s", ABOUT_FILE, error)


def read_about(reg: Registry) -> dict[str, Any]:
    """What the hub's only worker said of itself when it began; nothing if it said nothing."""
    with suppress(OSError, ValueError):
        found = json.loads((reg.data_dir / ABOUT_FILE).read_text())
        if isinstance(found, dict):
            return found
    return {}


def mark_gone(reg: Registry) -> None:
    """Note that the hub's only worker ends."""
    with suppress(OSError):
        (reg.data_dir / SEEN_FILE).unlink()


def served_queues(reg: Registry) -> set[str] | None:
    """The queues whose jobs some worker runs; None if the hub's workers do not say."""
    if reg.db.is_sqlite:
        return None
    with reg.db.read() as session:
        workers = live(session, WORKER_LOCK)
    return {queue for worker in workers for queue in worker.about.get("queues", ())}


def worker_seen_at(reg: Registry) -> float | None:
    """When a worker last looked for jobs, in seconds since 1970; None if no worker runs."""
    silent = silent_s(reg)
    return None if silent is None else time.time() - silent


def silent_s(reg: Registry) -> float | None:
    """Seconds since a worker last looked for jobs; None without one."""
    if not reg.db.is_sqlite:
        with reg.db.read() as session:
            return seconds_since_look(session, WORKER_LOCK)
    try:
        seen_at = (reg.data_dir / SEEN_FILE).stat().st_mtime
    except FileNotFoundError:
        return None
    return abs(time.time() - seen_at)  # the clock may have been ahead

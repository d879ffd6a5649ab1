"""Receives LFS uploads when several connections send the same file at once.

This happens when a folder of checkpoints holds a file several times, or jobs on several machines
push the same tokenizer. The hub has one upload for a file, and one connection writes to it at a
time. LFS clients give up when they are refused, so a second connection waits until the first one is
done, and then finds the file here.
"""

import time
from collections.abc import Iterator

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import Conflict, UploadNotFound
from deltahub.registry.uploads import landing
from deltahub.registry.uploads.landing import LandingStatus
from deltahub.server.hub import Hub
from deltahub.server.streaming.bodies import BodyFeed, SlowBody
from deltahub.server.streaming.body_wait import BodyWait

_POLL_S = 0.05


def receive_part(
    hub: Hub, caller: Caller, sha256: str, size: int, offset: int, length: int, feed: BodyFeed
) -> None:
    """Append a part of a file, once all bytes before it are here. Waits up to idle_s seconds.

    A part that is here already is not read.
    """
    deadline = time.monotonic() + hub.settings.idle_s
    while True:
        cancellation.check()
        with feed.wait.for_client():  # which sends the bytes before these in other requests
            found = _wait_for(hub, caller, sha256, offset, deadline, feed.wait)
        if found is not None and found.is_complete:
            return
        start, rest = offset, feed.blocks()
        if found is not None and found.size == size and found.received > offset:
            start = found.received
            if offset + length <= start < size:
                return
            # An earlier connection broke inside this part, or before the hub had completed the
            # upload. The client repeats all of the part: skip the bytes that are here.
            rest = _without_first(rest, start - offset) if start < offset + length else iter(())
        left = max(offset + length - start, 0)
        try:
            landing.receive(hub.registry, caller, sha256, size, start, rest, length=left)
            return
        except (Conflict, UploadNotFound):
            # Another connection writes to the upload, or has changed it meanwhile.
            if feed.is_started or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def _without_first(blocks: Iterator[bytes], n_bytes: int) -> Iterator[bytes]:
    for block in blocks:
        yield block[n_bytes:]
        n_bytes = max(n_bytes - len(block), 0)


def _wait_for(
    hub: Hub, caller: Caller, sha256: str, offset: int, deadline: float, wait: BodyWait
) -> LandingStatus | None:
    """The status of the upload once all bytes before `offset` are here; None before any came."""
    while True:
        try:
            found = landing.status(hub.registry, caller, sha256)
        except UploadNotFound:
            found = None
        received = 0 if found is None else found.received
        if received >= offset:
            return found
        cancellation.check()
        if wait.is_cut:
            raise SlowBody
        if time.monotonic() > deadline:
            raise Conflict(
                f"the hub has {received} bytes of {sha256}; what lies before {offset} is missing"
            )
        time.sleep(_POLL_S)

"""Links by which our client reads frames from the object store itself, without the hub between.

A link is given for exactly those bytes that stream_frames would send to the same caller. A pack may
hold frames of repositories that the caller may not read: only neighbouring frames that were asked,
and that the caller may have, share a link, and nothing between two of them is part of one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.db.models import Revision
from deltahub.registry.downloads.plan import deltas_of_unreadable, tensors_of
from deltahub.registry.errors import LimitExceeded
from deltahub.registry.packs.locations import FrameLocation, locate
from deltahub.registry.registry import Registry
from deltahub.registry.storage.keys import pack_key

# Frames in one answer: signing takes some 0.3 ms of a processor for each link.
PAGE_FRAMES: Final = 1024
# A link's range: few enough bytes to ask for again, enough to hide a round trip.
LINK_BYTES: Final = 32 << 20
_ANY_PACK: Final = "0" * 32


@dataclass
class FrameLink:
    """A URL for bytes [start, end) of an object: frames back to back.

    frames: (number of the tensor among those that were asked, bytes of the frame) each.
    """

    url: str
    start: int
    end: int
    frames: list[tuple[int, int]]


@dataclass(frozen=True)
class LinkPage:
    """Links for the first n_tensors of the tensors that were asked. The others are asked again.

    A tensor without links, or with links for a part of its frames, comes through the hub.
    """

    n_tensors: int
    links: tuple[FrameLink, ...]


@dataclass
class _Span:
    """Neighbouring frames of one pack."""

    pack_id: str
    start: int
    end: int
    frames: list[tuple[int, int]] = field(default_factory=list)


def link_origin(reg: Registry) -> str | None:
    """Scheme, host and port of all links; None if this hub gives none."""
    if not reg.settings.s3_link_endpoint:
        return None
    link = reg.store.link(pack_key(_ANY_PACK), 0, 1, 1)
    if link is None:
        return None
    parts = urlsplit(link)
    return f"{parts.scheme}://{parts.netloc}"


def link_frames(
    reg: Registry, caller: Caller | None, revision: Revision, tensors: Sequence[bytes]
) -> LinkPage:
    """Links to the frames of these tensors, for a caller who may read the revision.

    There are none for a tensor that no file of the revision has, for a delta of a tensor that the
    caller may not read, and at a hub without links. LimitExceeded for too many tensors.
    """
    limit = reg.settings.max_query_tensors
    if len(tensors) > limit:
        raise LimitExceeded(f"a request names at most {limit} tensors, not {len(tensors)}")
    if not reg.settings.s3_link_endpoint:
        return LinkPage(len(tensors), ())
    page = list(tensors[:PAGE_FRAMES])  # a tensor has a frame at least, unless it is empty
    with reg.db.read() as session:
        ids = tensors_of(session, revision, page)
        allowed = set(ids.values()) - deltas_of_unreadable(session, caller, ids.values())
        located = locate(session, allowed)
    frames: list[tuple[int, FrameLocation]] = []
    n_tensors = 0
    for number, content in enumerate(page):
        place = located.get(ids[content]) if content in ids else None
        # The hub itself sends a tensor of so many frames that no answer holds their links.
        own = place.frames if place is not None and len(place.frames) <= PAGE_FRAMES else ()
        if len(frames) + len(own) > PAGE_FRAMES:
            break
        frames.extend((number, frame) for frame in own)
        n_tensors = number + 1
    return LinkPage(n_tensors, tuple(_links(reg, _spans(frames))))


def _spans(frames: Iterable[tuple[int, FrameLocation]]) -> Iterator[_Span]:
    """Frames that lie back to back in one pack, together."""
    span: _Span | None = None
    seen: set[tuple[str, int]] = set()
    for number, frame in sorted(frames, key=lambda each: (each[1].pack_id, each[1].offset)):
        if (frame.pack_id, frame.offset) in seen:
            continue  # the request named a tensor twice
        seen.add((frame.pack_id, frame.offset))
        end = frame.offset + frame.length
        is_next = span is not None and (span.pack_id, span.end) == (frame.pack_id, frame.offset)
        if span is None or not is_next or end - span.start > LINK_BYTES:
            if span is not None:
                yield span
            span = _Span(frame.pack_id, frame.offset, frame.offset)
        span.end = end
        span.frames.append((number, frame.length))
    if span is not None:
        yield span


def _links(reg: Registry, spans: Iterable[_Span]) -> Iterator[FrameLink]:
    lifetime_s = reg.settings.s3_link_lifetime_s
    for span in spans:
        cancellation.check()
        url = reg.store.link(pack_key(span.pack_id), span.start, span.end, lifetime_s)
        if url is not None:
            yield FrameLink(url, span.start, span.end, span.frames)

"""State that all requests share: the open registry, caches, and limits on work at once."""

import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Annotated, Final, TypeVar

import anyio
import anyio.to_thread
from fastapi import Depends, Request

from deltahub.registry import File, Memo, cancellation
from deltahub.registry.access import tokens
from deltahub.registry.access.caller import Caller
from deltahub.registry.cards.describe import describe_marked
from deltahub.registry.catalog.lists.download_counts import DownloadCounts
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.jobs.health import Health, Problem
from deltahub.registry.packs.base_cache import HotBases
from deltahub.registry.registry import Registry
from deltahub.server.browser_sessions import of_browser
from deltahub.server.connections.authorization import token_in
from deltahub.server.public_url import S3Door
from deltahub.server.settings import ServerSettings
from deltahub.server.signing import Signer
from deltahub.server.streaming.bodies import ChunkStream
from deltahub.server.streaming.body_wait import BodyWait
from deltahub.server.streaming.chunks import Piece, in_chunks
from deltahub.server.streaming.client_slots import ClientKey, FairQueue
from deltahub.server.streaming.metering import Traffic

T = TypeVar("T")

# Request bodies that are in memory at once: small ones (at most 256 KiB each) and large ones. With
# the default limit for JSON bodies this is at most 128 MiB in all.
SMALL_BODIES: Final = 128
LARGE_BODIES: Final = 6
# When others wait for a slot, a body is cut that takes longer for a block of 1 MiB, or a small body
# (256 KiB) in whole. With SLOW_S for 4 MiB of a download these are the same 70 kB/s.
_SLOW_BLOCK_S: Final = 15.0
_SLOW_SMALL_BODY_S: Final = 4.0
# Largest response body that a connection's buffers take whole, unless its client reads nothing.
SMALL_ANSWER_BYTES: Final = 64 << 10
# Handlers at once that may write. With the reading ones they leave some of the 40 threads free.
WRITES: Final = 24
# Requests at once whose memory grows with the number of tensors, by up to some 100 MB each.
HEAVY_READS: Final = 2
# When others wait, the hub cuts an answer whose client made it wait longer than this in all.
SLOW_ANSWER_S: Final = 10.0
# Of a report, well below the time for which others wait for its slot.
SLOW_REPORT_S: Final = 3.0
# Event streams at once: each looks at the database twice a second.
WATCHES: Final = 128
SHARDS: Final = 8
PUBLICATIONS: Final = 2
# Heads whose facts are written at once, and the longest time for it, of each call of update_lists.
_DESCRIBED: Final = 20
_DESCRIBING_S: Final = 1.0
# How long links still work after the token that they were signed for has ended: the cache time.
_LINK_CACHE_S: Final = 1.0


class _Slots:
    """A semaphore of n slots. SimpleQueue is C; threading.Semaphore runs more Python a chunk."""

    def __init__(self, n: int) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(n):
            self._free.put(None)

    def __enter__(self) -> None:
        self._free.get()

    def __exit__(self, *_: object) -> None:
        self._free.put(None)


@dataclass
class Hub:
    """One running server. Its queues bound threads, and so memory, over all requests."""

    registry: Registry
    settings: ServerSettings
    traffic: Traffic
    health: Health = field(init=False)
    hot_bases: HotBases = field(init=False)
    reader: FileReader = field(init=False)
    signer: Signer = field(init=False)
    s3_door: S3Door = field(init=False)
    downloads: DownloadCounts = field(default_factory=DownloadCounts, init=False)
    _described: int = field(default=0, init=False)
    link_cache: Memo[Hashable, tuple[Caller | None, File | None]] = field(init=False)
    _sender_threads: Executor = field(init=False)
    _decode_slots: AbstractContextManager[object] = field(init=False)
    # For request bodies that are read whole: many small ones at once, few large ones.
    small_bodies: FairQueue = field(init=False)
    large_bodies: FairQueue = field(init=False)
    # Turns of handlers that run in threads (turns.py).
    writes: FairQueue = field(init=False)
    reads: FairQueue = field(init=False)
    heavy_reads: FairQueue = field(init=False)
    long_answers: FairQueue = field(init=False)
    watches: FairQueue = field(init=False)  # event streams
    _streaming: FairQueue = field(init=False)
    _answering: FairQueue = field(init=False)
    _verifying: FairQueue = field(init=False)
    _uploading: FairQueue = field(init=False)
    _assembling: FairQueue = field(init=False)
    _publishing: FairQueue = field(init=False)
    _health_thread: anyio.CapacityLimiter = field(init=False)
    _unlimited: anyio.CapacityLimiter = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.health = Health(self.registry, settings.store_check_interval_s)
        self.hot_bases = HotBases(
            self.registry.disk, self.registry.scratch, settings.hot_base_bytes
        )
        self.registry.reclaimable_bytes = self._reclaimable_bytes
        self.reader = FileReader(self.registry, hot_bases=self.hot_bases)
        self.signer = Signer.of(self.registry.data_dir, settings.signing_key)
        self.s3_door = S3Door(settings.s3_url)
        # Cache of (caller, file) that Xet links allow: clients follow one link for every 64 MiB.
        self.link_cache = Memo(self.registry.db, _LINK_CACHE_S)
        # One thread for each slot of _streaming and of _answering: it blocks on its client.
        self._sender_threads = ThreadPoolExecutor(2 * settings.max_streams, "sending")
        self._decode_slots = _Slots(settings.decode_threads)
        self._streaming = FairQueue(
            f"sends {settings.max_streams} downloads at once, and {settings.streams_per_user} to"
            " one user or address",
            settings.max_streams,
            settings.streams_per_user,
            settings.idle_s,
            _guest_slots(settings.max_streams),
        )
        # Small answers have slots of their own: a socket mostly takes them whole, so they need not
        # wait for slow downloads.
        self._answering = FairQueue(
            f"sends {settings.max_streams} small files at once, and {settings.streams_per_user} to"
            " one user or address",
            settings.max_streams,
            settings.streams_per_user,
            settings.idle_s,
            _guest_slots(settings.max_streams),
        )
        # One user never has all threads, unless there is only one.
        checks_per_user = max(settings.proof_threads - 1, 1)
        self._verifying = FairQueue(
            f"checks {settings.proof_threads} packs and recipes at once, and {checks_per_user} of"
            " one user",
            settings.proof_threads,
            checks_per_user,
            settings.idle_s,
        )
        # What these do may take hours, and nothing else waits for it.
        self._assembling = FairQueue(
            f"assembles {SHARDS} Xet shards at once, and {SHARDS // 4} of one user",
            SHARDS,
            SHARDS // 4,
            settings.idle_s,
        )
        self._publishing = FairQueue(
            f"makes {PUBLICATIONS} models public at once, and one of one user",
            PUBLICATIONS,
            1,
            settings.idle_s,
        )
        self._uploading = FairQueue(
            f"receives {settings.uploads_per_user} uploads of one user at once, and"
            f" {settings.upload_threads} of all",
            settings.upload_threads,
            settings.uploads_per_user,
            settings.idle_s,
            slow_s=_SLOW_BLOCK_S,
        )
        self.small_bodies = FairQueue(
            f"reads {SMALL_BODIES} requests at once, and {SMALL_BODIES // 4} of one user or"
            " address",
            SMALL_BODIES,
            SMALL_BODIES // 4,
            settings.idle_s,
            _guest_slots(SMALL_BODIES),
            slow_s=_SLOW_SMALL_BODY_S,
        )
        self.large_bodies = FairQueue(
            f"reads {LARGE_BODIES} large requests at once, and {LARGE_BODIES // 3} of one user",
            LARGE_BODIES,
            LARGE_BODIES // 3,
            settings.idle_s,
            slow_s=_SLOW_BLOCK_S,
        )
        self.writes = FairQueue(
            f"makes {WRITES} changes at once, and {WRITES // 3} of one user or address",
            WRITES,
            WRITES // 3,
            settings.idle_s,
            _guest_slots(WRITES),
        )
        self.reads = FairQueue(
            f"answers {settings.read_threads} reading requests at once, and"
            f" {settings.reads_per_user} of one user or address",
            settings.read_threads,
            settings.reads_per_user,
            settings.read_wait_s,
            _guest_slots(settings.read_threads),
        )
        self.heavy_reads = FairQueue(
            f"makes {HEAVY_READS} reports of tensors at once, and one of a user or address",
            HEAVY_READS,
            1,
            settings.read_wait_s,
            _guest_slots(HEAVY_READS),
            slow_s=SLOW_REPORT_S,
        )
        self.long_answers = FairQueue(
            f"sends {settings.max_streams} long lists at once, and {settings.streams_per_user} to"
            " one user or address",
            settings.max_streams,
            settings.streams_per_user,
            settings.read_wait_s,
            _guest_slots(settings.max_streams),
            slow_s=SLOW_ANSWER_S,
        )
        self.watches = FairQueue(
            f"tells {WATCHES} clients at once what happens, and {WATCHES // 8} of one user",
            WATCHES,
            WATCHES // 8,
            settings.read_wait_s,
            _guest_slots(WATCHES),
        )
        # The queues bound these threads already.
        self._unlimited = anyio.CapacityLimiter(math.inf)
        self._health_thread = anyio.CapacityLimiter(1)

    async def upload(
        self, caller: Caller | None, receive: Callable[[], T], wait: BodyWait | None = None
    ) -> T:
        """Run `receive` in a thread once an upload slot is free; its result.

        Raises Busy, and Cancelled if the client disconnects while it waits.
        """
        return await self._in_thread(self._uploading, caller, receive, wait)

    async def verify(self, caller: Caller | None, check: Callable[[], T]) -> T:
        """Run `check` in a thread once a verification slot is free; its result. As upload()."""
        return await self._in_thread(self._verifying, caller, check)

    async def assemble(self, caller: Caller | None, work: Callable[[], T]) -> T:
        """Assemble the files of a Xet shard in a thread once there is a turn. As upload()."""
        return await self._in_thread(self._assembling, caller, work)

    async def publish(self, caller: Caller | None, work: Callable[[], T]) -> T:
        """Make a model public in a thread once there is a turn. As upload()."""
        return await self._in_thread(self._publishing, caller, work)

    async def change(self, caller: Caller | None, work: Callable[[], T]) -> T:
        """Change something in a thread once there is a turn, for handlers that also wait."""
        return await self._in_thread(self.writes, caller, work)

    async def _in_thread(
        self,
        queue: FairQueue,
        caller: Caller | None,
        work: Callable[[], T],
        wait: BodyWait | None = None,
    ) -> T:
        async with queue.slot(_client_of(caller), wait):
            cancellation.check()
            return await anyio.to_thread.run_sync(work, limiter=self._unlimited)

    async def problems(self) -> list[Problem]:
        """The parts of the hub that do not work, whoever else waits for an answer."""
        return await anyio.to_thread.run_sync(self.health.problems, limiter=self._health_thread)

    @property
    def queues(self) -> Mapping[str, FairQueue]:
        """All queues of turns, by the names that monitoring shows."""
        return {
            "downloads": self._streaming,
            "small_files": self._answering,
            "uploads": self._uploading,
            "verifications": self._verifying,
            "xet_shards": self._assembling,
            "publications": self._publishing,
            "small_bodies": self.small_bodies,
            "large_bodies": self.large_bodies,
            "writes": self.writes,
            "reads": self.reads,
            "reports": self.heavy_reads,
            "long_lists": self.long_answers,
            "events": self.watches,
        }

    def leave_room(self) -> None:
        """Drop copies on the disk while it is short of space; to be called at intervals."""
        self.hot_bases.leave_room()
        if self.registry.cache is not None:
            self.registry.cache.leave_room()

    def update_lists(self) -> None:
        """Write the downloads that were counted, and facts that lack rows; call it at intervals.

        Facts lack rows in a hub that an older release wrote, and after a crash or a failed read.
        """
        self.downloads.write(self.registry)
        end = time.monotonic() + _DESCRIBING_S
        while time.monotonic() < end:
            after = describe_marked(self.registry, self.reader, self._described, _DESCRIBED)
            self._described = after or 0
            if after is None:
                return

    def _reclaimable_bytes(self) -> int:
        cache = self.registry.cache
        return self.hot_bases.kept_bytes + (0 if cache is None else cache.kept_bytes)

    def stream(
        self,
        client: ClientKey,
        pieces: Iterable[Piece],
        *,
        status_code: int,
        headers: Mapping[str, str],
        label: str,
    ) -> ChunkStream:
        """Return a response that streams these bytes once a slot is free, else fails with Busy.

        client: as client_key returns it. headers: must contain Content-Length. label: for the log.
        """
        is_small = int(headers["Content-Length"]) <= SMALL_ANSWER_BYTES
        return ChunkStream(
            in_chunks(pieces),
            self._sender_threads,
            self._decode_slots,
            self._answering if is_small else self._streaming,
            client,
            status_code=status_code,
            headers=headers,
            idle_s=self.settings.idle_s,
            label=label,
        )


def _guest_slots(total: int) -> int:
    # A quarter of the slots, rounded up, is for users with a token, however many guests there are.
    return max(total - -(-total // 4), 1)


def _client_of(caller: Caller | None) -> ClientKey:
    # Guests share one key: they may upload nothing, and are refused as soon as they have a slot.
    return "" if caller is None else caller.user_id


async def hub_of(request: Request) -> Hub:
    hub: Hub = request.app.state.hub
    return hub


HubDep = Annotated[Hub, Depends(hub_of)]


async def caller_of(request: Request, hub: HubDep) -> Caller | None:
    """Return the caller of a request; None without a token. Raises Unauthorized for a bad token."""
    # A request looks its caller up once, for its turn and for its handler.
    if not hasattr(request.state, "caller"):
        request.state.caller = await _authenticate(request, hub)
    caller: Caller | None = request.state.caller
    return caller


async def _authenticate(request: Request, hub: Hub) -> Caller | None:
    # Only requests with a token use a thread: the switch costs more than reading the headers.
    header = request.headers.get("authorization")
    if header is None:
        return await of_browser(request, hub.registry, hub.signer)
    return await anyio.to_thread.run_sync(tokens.authenticate, hub.registry, token_in(header))


CallerDep = Annotated[Caller | None, Depends(caller_of)]


async def name_of(namespace: str, name: str) -> str:
    """Return the full name of the repository of a path."""
    return f"{namespace}/{name}"


NameDep = Annotated[str, Depends(name_of)]

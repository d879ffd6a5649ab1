"""What every handler works with: the open registry and what is shared between requests."""

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import anyio
import anyio.to_thread
from fastapi import Depends, Request

from deltahub.registry import users
from deltahub.registry.errors import Unauthorized
from deltahub.registry.permissions import ANONYMOUS, Caller
from deltahub.registry.registry import Registry
from deltahub.registry.restore import Restorer
from deltahub.server.chunks import in_chunks
from deltahub.server.metering import Traffic
from deltahub.server.settings import ServerSettings
from deltahub.server.signing import Signer
from deltahub.server.streaming import ChunkStream
from deltahub.server.turns import turn

T = TypeVar("T")


@dataclass
class Hub:
    """One running server. The limiters bound threads, and with them memory, over all requests."""

    registry: Registry
    settings: ServerSettings
    traffic: Traffic
    restorer: Restorer = field(init=False)
    signer: Signer = field(init=False)
    _decoding: Executor = field(init=False)
    _streaming: anyio.CapacityLimiter = field(init=False)
    _proving: anyio.CapacityLimiter = field(init=False)
    _uploading: anyio.CapacityLimiter = field(init=False)
    _uploading_by_user: dict[int | None, anyio.CapacityLimiter] = field(init=False)
    _with_turn: anyio.CapacityLimiter = field(init=False)

    def __post_init__(self) -> None:
        self.restorer = Restorer(self.registry)
        self.signer = Signer.of_folder(self.registry.data_dir)
        # Not anyio's threads: a chunk's way there and back would take ten times as long.
        self._decoding = ThreadPoolExecutor(self.settings.decode_threads, "decoding")
        self._streaming = anyio.CapacityLimiter(self.settings.max_streams)
        self._proving = anyio.CapacityLimiter(self.settings.proof_threads)
        self._uploading = anyio.CapacityLimiter(self.settings.upload_threads)
        self._uploading_by_user = {}
        # Who has a turn needs no other bound.
        self._with_turn = anyio.CapacityLimiter(math.inf)

    async def upload(self, caller: Caller | None, receive: Callable[[], T]) -> T:
        """What `receive` returns, run in a thread once it is this upload's turn; else Busy.

        All uploads have a bound, and those of one user: slow ones must not take every thread.
        """
        bounds = (
            f"receives {self.settings.uploads_per_user} uploads of one user at once, and"
            f" {self.settings.upload_threads} of all"
        )
        limits = self._uploading_by(caller), self._uploading
        async with turn(self.settings.idle_s, bounds, *limits):
            return await anyio.to_thread.run_sync(receive, limiter=self._with_turn)

    async def prove(self, check: Callable[[], T]) -> T:
        """What `check` returns, run in a thread once it is its turn; else Busy."""
        bounds = f"checks {self.settings.proof_threads} packs and recipes at once"
        async with turn(self.settings.idle_s, bounds, self._proving):
            return await anyio.to_thread.run_sync(check, limiter=self._with_turn)

    def _uploading_by(self, caller: Caller | None) -> anyio.CapacityLimiter:
        user = None if caller is None else caller.user_id
        if user not in self._uploading_by_user:
            limit = anyio.CapacityLimiter(self.settings.uploads_per_user)
            self._uploading_by_user[user] = limit
        return self._uploading_by_user[user]

    def stream(
        self,
        pieces: Iterator[bytes] | Iterator[memoryview],
        *,
        status_code: int,
        headers: Mapping[str, str],
        label: str,
    ) -> ChunkStream:
        """The response with these bytes, once it is its turn; else Busy."""
        bounds = f"sends {self.settings.max_streams} downloads at once"
        return ChunkStream(
            in_chunks(pieces),
            self._decoding,
            lambda: turn(self.settings.idle_s, bounds, self._streaming),
            status_code=status_code,
            headers=headers,
            idle_s=self.settings.idle_s,
            label=label,
        )


async def hub_of(request: Request) -> Hub:
    hub: Hub = request.app.state.hub
    return hub


HubDep = Annotated[Hub, Depends(hub_of)]


def caller_of(request: Request, hub: HubDep) -> Caller | None:
    """Who asks; None without a token. A token that is not good is never taken for none."""
    header = request.headers.get("authorization")
    if header is None:
        return ANONYMOUS
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized("the Authorization header must be: Bearer <token>")
    return users.authenticate(hub.registry, token.strip())


CallerDep = Annotated[Caller | None, Depends(caller_of)]


def name_of(namespace: str, name: str) -> str:
    """The full name that a path gives in two parts."""
    return f"{namespace}/{name}"


NameDep = Annotated[str, Depends(name_of)]

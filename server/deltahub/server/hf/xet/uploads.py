"""Uploads by Xet: xorbs of chunks, then shards that list which chunks make up which files."""

import asyncio
import json
import logging
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Request
from fastapi import Path as InPath
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from deltahub.codecs.errors import CodecError
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.errors import LimitExceeded, RegistryError
from deltahub.registry.storage.base import StoreError
from deltahub.registry.xet import receive_xorb
from deltahub.registry.xet.hashes import from_text
from deltahub.registry.xet.known_chunks import known_chunks
from deltahub.registry.xet.receive_shard import Progress, accept_shard
from deltahub.registry.xet.shard import MAX_SHARD_BYTES
from deltahub.registry.xet.xorb import MAX_BODY_BYTES
from deltahub.server.body_limits import BoundedRoute, streams_body
from deltahub.server.errors import STATUS_OF, public_text, wire_code
from deltahub.server.hf.errors import refusal
from deltahub.server.hf.xet.links import XetCaller, XetReaderDep, XetWriterDep
from deltahub.server.hub import Hub, HubDep
from deltahub.server.streaming.bodies import BodyFeed, discard_body
from deltahub.server.streaming.client_slots import client_key

log = logging.getLogger(__name__)

router = APIRouter(route_class=BoundedRoute, prefix="/cas/{epoch}/{place}")

# Time between progress lines while a shard is processed.
_PROGRESS_INTERVAL_S: Final = 1.0
_MAX_TELEMETRY_BYTES: Final = 1 << 20
_MAX_GRANT_BYTES: Final = 1 << 16
_RETRIED: Final = frozenset({"conflict", "unavailable", "busy", "not_ready"})

_Prefix = Annotated[str, InPath(pattern="^default(-merkledb)?$")]


@router.get("/v1/chunks/{prefix}/{digest}")
def find_chunk(
    prefix: _Prefix, digest: str, request: Request, hub: HubDep, xet_caller: XetWriterDep
) -> Response:
    """Return chunks that need not be sent, of files that begin with a chunk."""
    writer = require_writer(xet_caller.caller)
    found = known_chunks(hub.registry, writer, xet_caller.place, from_text(digest))
    if found is None:
        return refusal("not_found", "nothing that you may read and use here begins with this chunk")
    # Streamed with a slot: the answer may have megabytes, which must not pile up for slow clients.
    return hub.stream(
        client_key(request, writer),
        found.pieces(),
        status_code=200,
        headers={
            "Content-Length": str(found.size),
            "Content-Type": "application/octet-stream",
        },
        label=f"chunks from {digest} on in {xet_caller.place}",
    )


@router.post("/v1/xorb-grants/{prefix}/{digest}")
@streams_body
async def grant_xorb(
    prefix: _Prefix, digest: str, request: Request, hub: HubDep, xet_caller: XetWriterDep
) -> Response:
    """Tell a client whether the hub has a xorb; if not, it must send the xorb to the hub itself."""
    await discard_body(request, _MAX_GRANT_BYTES, hub.settings.idle_s)
    look = partial(receive_xorb.has_xorb, hub.registry, xet_caller.repository_id, from_text(digest))
    if await hub.upload(xet_caller.caller, look):
        return JSONResponse({"was_inserted": False})
    return refusal("not_found", "send xorbs to this hub itself")


@router.post("/v1/telemetry")
@streams_body
async def post_telemetry(request: Request, hub: HubDep, xet_caller: XetReaderDep) -> JSONResponse:
    """Accept a client's statistics and drop them."""
    await discard_body(request, _MAX_TELEMETRY_BYTES, hub.settings.idle_s)
    return JSONResponse({})


@router.post("/v1/xorbs/{prefix}/{digest}")
@streams_body
async def post_xorb(
    prefix: _Prefix, digest: str, request: Request, hub: HubDep, xet_caller: XetWriterDep
) -> JSONResponse:
    """Store a xorb, after each of its chunks was decoded and its hash verified."""
    _check_length(request, MAX_BODY_BYTES, "xorb")
    expected = from_text(digest)
    async with BodyFeed(request, hub.settings.idle_s) as feed:
        receive = partial(
            receive_xorb.receive_xorb,
            hub.registry,
            require_writer(xet_caller.caller),
            xet_caller.repository_id,
            expected,
            feed.blocks(),
        )
        try:
            is_new = await hub.upload(xet_caller.caller, receive, feed.wait)
        except RegistryError as error:
            # Logged, because clients show only the status and not the error's text.
            log.warning("xorb=%s of %s: code=%s: %s", digest, xet_caller.place, error.code, error)
            raise
        finally:
            request.state.has_unread_body = feed.has_unread_body
    return JSONResponse({"was_inserted": is_new})


@router.post("/shards")
@router.post("/v1/shards")
@streams_body
async def post_shard(request: Request, hub: HubDep, xet_caller: XetWriterDep) -> JSONResponse:
    """Land the files of a shard, and answer when all have landed."""
    with ExitStack() as stack:
        path = await _spool(request, hub, xet_caller, stack)
        await hub.assemble(xet_caller.caller, _accept_call(hub, xet_caller, path, Progress()))
    return JSONResponse({"result": 1})


@router.post("/v2/shards")
@streams_body
async def stream_shard(request: Request, hub: HubDep, xet_caller: XetWriterDep) -> Response:
    """Land the files of a shard, and stream progress meanwhile."""
    with ExitStack() as stack:
        path = await _spool(request, hub, xet_caller, stack)
        return _ShardAnswer(hub, xet_caller, path, stack.pop_all())


class _ShardAnswer(Response):
    """Lines of JSON with the progress of a shard; the last one is the result or the error."""

    media_type = "application/x-ndjson"

    def __init__(self, hub: Hub, xet_caller: XetCaller, path: Path, stack: ExitStack) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._hub = hub
        self._xet_caller = xet_caller
        self._path = path
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        progress = Progress()
        work = _accept_call(self._hub, self._xet_caller, self._path, progress)
        with self._stack:
            job = asyncio.create_task(self._hub.assemble(self._xet_caller.caller, work))
            gone = asyncio.create_task(_disconnected(receive))
            try:
                start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                await send(start)
                while not job.done() and not gone.done():
                    await _send_line(
                        send, type="validating", verified=progress.done, total=progress.total
                    )
                    await asyncio.wait(
                        {job, gone},
                        timeout=_PROGRESS_INTERVAL_S,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                if job.done():
                    await self._finish(send, job.exception())
            finally:
                progress.is_cancelled = True
                gone.cancel()
                # Wait for the thread, which still reads the shard's file.
                await asyncio.shield(asyncio.gather(job, gone, return_exceptions=True))

    async def _finish(self, send: Send, error: BaseException | None) -> None:
        if error is None:
            await _send_line(send, type="committing", stage="uploading")
            await _send_line(send, type="result")
        else:
            message, is_retryable = _describe_error(error, self._xet_caller)
            await _send_line(send, type="error", message=message, retryable=is_retryable)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_line(send: Send, **fields: str | int | bool) -> None:
    line = json.dumps(fields).encode() + b"\n"
    await send({"type": "http.response.body", "body": line, "more_body": True})


def _accept_call(
    hub: Hub, xet_caller: XetCaller, path: Path, progress: Progress
) -> "partial[None]":
    caller: Caller = require_writer(xet_caller.caller)
    return partial(accept_shard, hub.registry, hub.reader, caller, xet_caller.place, path, progress)


async def _spool(request: Request, hub: Hub, xet_caller: XetCaller, stack: ExitStack) -> Path:
    """Write the body to a file that is deleted with the stack."""
    _check_length(request, MAX_SHARD_BYTES, "shard")
    async with BodyFeed(request, hub.settings.idle_s) as feed:
        write = partial(_write, hub, feed.blocks(), stack)
        try:
            return await hub.upload(xet_caller.caller, write, feed.wait)
        finally:
            request.state.has_unread_body = feed.has_unread_body


def _write(hub: Hub, blocks: Iterable[bytes], stack: ExitStack) -> Path:
    fd, path = stack.enter_context(receive_xorb.scratch_file(hub.registry, "shard", "in"))
    n_bytes = 0
    for block in blocks:
        n_bytes += len(block)
        if n_bytes > MAX_SHARD_BYTES:
            raise LimitExceeded(f"a shard has at most {MAX_SHARD_BYTES} bytes")
        hub.registry.disk.write(fd, block)
    return path


def _check_length(request: Request, limit: int, what: str) -> None:
    # The HTTP parser has checked that the header is a number.
    length = int(request.headers.get("content-length", "0"))
    if length > limit:
        request.state.has_unread_body = True
        raise LimitExceeded(f"a {what} has at most {limit} bytes, not {length}")


def _describe_error(error: BaseException, xet_caller: XetCaller) -> tuple[str, bool]:
    """(message, whether the client should retry by itself) for an error."""
    code = wire_code(getattr(error, "code", "internal_error"))
    is_known = isinstance(error, RegistryError | CodecError | StoreError) and code in STATUS_OF
    if not is_known or STATUS_OF[code] >= 500:
        log.error("shard of %s: code=%s", xet_caller.place, code, exc_info=error)
    if not is_known or code == "internal_error":
        return "the hub made a mistake; its log has the details", False
    return public_text(error), code in _RETRIED

"""Kits of adapters: they come in, and only facts about them go out."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.discriminator_file import MOST_HEADER, check_discriminator
from deltahub.methods.transfer.kit import TransferKit
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.adapters import kit_facts, kits
from deltahub.registry.errors import InvalidRequest, LimitExceeded
from deltahub.server.body_limits import BoundedRoute, streams_body
from deltahub.server.errors import LengthRequired
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.schemas.models import KitOut
from deltahub.server.streaming.bodies import BodyFeed
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, tags=["adapters"])

_KIT: Final = "/repositories/{namespace}/{name}/adapter/kit"
_BODY: Final = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
# Bytes that give the size of kit.json.
_SIZE_BYTES: Final = 4
_MOST_JSON: Final = 4 << 20
_MOST_FAULTS: Final = 5


@router.get(_KIT)
@reads()
def get_adapter_kit(namespace: str, name: str, hub: HubDep, caller: CallerDep) -> KitOut:
    """Tell what those who may write to an adapter may know of its kit.

    No answer of the hub has its seeds, its sketch or its discriminator.
    """
    found = kit_facts.read_kit_facts(hub.registry, caller, f"{namespace}/{name}")
    return KitOut.model_validate(found)


@router.delete(_KIT, status_code=204)
def delete_adapter_kit(namespace: str, name: str, hub: HubDep, caller: CallerDep) -> Response:
    """Delete the kit of an adapter."""
    kits.delete_kit(hub.registry, caller, f"{namespace}/{name}")
    return Response(status_code=204)


@router.put(_KIT, status_code=204, openapi_extra=_BODY)
@streams_body
async def put_adapter_kit(
    namespace: str, name: str, request: Request, hub: HubDep, caller: CallerDep
) -> Response:
    """Store the kit of an adapter, in place of the one before.

    The body: the size of kit.json, as 4 bytes with the lowest first, kit.json, and the
    discriminator, a safetensors file with PEFT's configuration in its metadata.
    """
    request.state.has_unread_body = True
    writer = require_writer(caller)
    if "content-length" not in request.headers:
        raise LengthRequired("a kit needs a Content-Length; chunked bodies are not taken")
    size = int(request.headers["content-length"])  # the HTTP parser has checked the number
    most = _SIZE_BYTES + _MOST_JSON + hub.registry.settings.max_kit_bytes
    if size > most:
        raise LimitExceeded(
            f"the kit has {size} bytes; this hub takes at most {most}: train the discriminator with"
            " a lower rank, or have the operator raise DELTAHUB_MAX_KIT_BYTES"
        )
    async with BodyFeed(request, hub.settings.idle_s) as feed:
        receive = partial(_receive, hub, writer, f"{namespace}/{name}", feed, size)
        await hub.upload(writer, receive, feed.wait)
        request.state.has_unread_body = feed.has_unread_body
    return Response(status_code=204)


def _receive(hub: Hub, caller: Caller, name: str, feed: BodyFeed, size: int) -> None:
    kits.require_kit_writer(hub.registry, caller, name)
    body = _Body(feed.blocks())
    n_json = int.from_bytes(body.take(_SIZE_BYTES), "little")
    if n_json > _MOST_JSON:
        raise LimitExceeded(f"kit.json has {n_json} bytes; at most {_MOST_JSON} are allowed")
    kit = _parsed(body.take(n_json))
    n_discriminator = size - _SIZE_BYTES - n_json
    # The header is in the first bytes, which the rest then follows.
    head = body.take(min(MOST_HEADER, n_discriminator))
    try:
        check_discriminator(head, n_discriminator)
    except CannotTransfer as exc:
        raise InvalidRequest(str(exc)) from exc
    new = kits.NewKit(
        kit.model_dump(mode="json"), kit.base, kit.adapter_sha256, kit.discriminator_sha256
    )
    kits.put_kit(hub.registry, caller, name, new, body.rest(head))


def _parsed(text: bytes) -> TransferKit:
    """InvalidRequest, whose words repeat nothing of the kit: it has private examples."""
    try:
        return TransferKit.model_validate_json(text)
    except ValidationError as exc:
        faults = [
            f"{'.'.join(map(str, each['loc'])) or 'kit'}: {each['msg']}"
            for each in exc.errors(include_url=False, include_input=False)[:_MOST_FAULTS]
        ]
    raise InvalidRequest(f"kit.json is refused: {'; '.join(faults)}")


class _Body:
    """A body that is read in order. InvalidRequest if it ends too soon."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._left = b""

    def take(self, size: int) -> bytes:
        found = bytearray(self._left)
        while len(found) < size:
            block = next(self._blocks, None)
            if block is None:
                raise InvalidRequest("the body ends within kit.json, or within its size")
            found += block
        self._left = bytes(found[size:])
        return bytes(found[:size])

    def rest(self, head: bytes) -> Iterator[bytes]:
        yield head
        yield self._left
        yield from self._blocks

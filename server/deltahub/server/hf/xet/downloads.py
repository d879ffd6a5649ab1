"""Downloads by Xet: a client fetches ranges of a file in parallel, each by a signed link."""

import re
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from deltahub.registry import File
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.visibility import listed_file
from deltahub.registry.errors import EntryNotFound, Unauthorized
from deltahub.registry.xet.epochs import repository_at
from deltahub.registry.xet.hashes import from_text
from deltahub.registry.xet.virtual_xorbs import CHUNK_BYTES, VirtualFile
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hf.errors import refusal
from deltahub.server.hf.xet.links import XetReaderDep
from deltahub.server.hub import Hub, HubDep
from deltahub.server.public_url import origin_of
from deltahub.server.settings import ServerSettings
from deltahub.server.signing import Claims, caller_of_claims, claims_for
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.streaming.ranges import requested_part
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, prefix="/cas")

# A client whose link has expired requests the reconstruction again.
LINK_TTL: Final = timedelta(minutes=15)
_PURPOSE: Final = "xorb"
# Claims of a link that identify neither the caller nor the file.
_IGNORED_CLAIMS: Final = frozenset({"xorb", "exp"})
_CLIENT: Final = re.compile(r"\bhf_hub/(\d{1,4})\.(\d{1,4})\.")
# Clients refuse plain HTTP for files larger than this, in bytes.
MAX_HTTP_BYTES: Final = 50_000_000_000


# The first releases of huggingface_hub (major, minor) that know Xet as it is spoken here, and that
# shall use it for every file. Those before them resume a killed download by plain HTTP, and are
# faster, so they use Xet only for files that they refuse to download otherwise. An unknown newer
# release is taken for the newest that was tested (docs/xet.md).
_KNOWS_XET: Final = (0, 34)
_PREFERS_XET: Final = (2, 0)


def xet_from(settings: ServerSettings, request: Request) -> int | None:
    """Return the size in bytes from which this client shall use Xet; None for never."""
    match = _CLIENT.search(request.headers.get("user-agent", ""))
    if match is None or not settings.has_xet_downloads:
        return None
    release = int(match[1]), int(match[2])
    if release < _KNOWS_XET:
        return None
    return 1 if release >= _PREFERS_XET else MAX_HTTP_BYTES + 1


def xet_headers(request: Request, name: str, commit: str, file: File) -> dict[str, str]:
    """Return the response headers that make a client download the file by Xet."""
    base = origin_of(request)
    url = f"{base}/api/models/{quote(name)}/xet-read-token/{commit}"
    return {"X-Xet-Hash": file.sha256, "Link": f'<{url}>; rel="xet-auth"'}


@router.get("/{epoch}/{place}/v2/reconstructions/{digest}")
@reads(is_long=True)
def get_reconstruction(
    digest: str, request: Request, hub: HubDep, xet_caller: XetReaderDep
) -> JSONResponse:
    """Return the chunks and xorbs that make up a file, or one byte range of it."""
    return _reconstruction(digest, request, hub, xet_caller, version=2)


@router.get("/{epoch}/{place}/reconstruction/{digest}")
@router.get("/{epoch}/{place}/reconstructions/{digest}")
@router.get("/{epoch}/{place}/v1/reconstructions/{digest}")
@reads(is_long=True)
def get_reconstruction_v1(
    digest: str, request: Request, hub: HubDep, xet_caller: XetReaderDep
) -> JSONResponse:
    """Return the same in the form of older clients."""
    return _reconstruction(digest, request, hub, xet_caller, version=1)


@router.get("/xorbs/{token}")
def get_xorb(token: str, request: Request, hub: HubDep) -> Response:
    """Send bytes of a xorb to the holder of a link, while the link's caller may read the file."""
    try:
        claims = hub.signer.verify(_PURPOSE, token)
        cache_key = tuple(
            sorted((name, claims[name]) for name in claims if name not in _IGNORED_CLAIMS)
        )
        caller, file = hub.link_cache.get(cache_key, lambda: _resolve_link(hub, claims))
    except Unauthorized as error:
        # On 403 clients request a new link.
        return refusal("forbidden", str(error))
    if file is None:
        raise EntryNotFound("the file of this link is gone, or you may not read it any more")
    virtual = VirtualFile(file.sha256, file.size)
    xorb = int(claims["xorb"])
    size = virtual.stored_bytes(xorb)
    headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    part = requested_part(request.headers.get("range"), None, "", size)
    start, end = (0, size) if part is None else (part.start, part.end)
    headers["Content-Length"] = str(end - start)
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    found = file
    return hub.stream(
        client_key(request, caller),
        virtual.read(xorb, start, end, lambda a, b: hub.reader.stream_pieces(found, a, b)),
        status_code=200 if part is None else 206,
        headers=headers,
        label=f"xorb {xorb} of {file.sha256}",
    )


def _resolve_link(hub: Hub, claims: Claims) -> tuple[Caller | None, File | None]:
    """The caller of a link, and its file; None if the caller may not read the file any more."""
    with hub.registry.db.read() as session:
        caller = caller_of_claims(session, claims)
        repository = repository_at(session, caller, str(claims["place"]), "read")
        # The same check as when the link was made: the caller may read the file by another
        # repository.
        return caller, listed_file(session, caller, repository, str(claims["sha256"]))


def _reconstruction(
    digest: str, request: Request, hub: HubDep, xet_caller: XetReaderDep, *, version: int
) -> JSONResponse:
    from_text(digest)
    with hub.registry.db.read() as session:
        repository = repository_at(session, xet_caller.caller, xet_caller.place, "read")
        file = listed_file(session, xet_caller.caller, repository, digest)
    if file is None or file.size == 0:
        raise EntryNotFound(f"there is no file {digest} here, or you may not read it")
    part = requested_part(request.headers.get("range"), None, "", file.size)
    start, end = (0, file.size) if part is None else (part.start, part.end)
    virtual = VirtualFile(file.sha256, file.size)
    base = origin_of(request)
    terms: list[dict[str, Any]] = []
    fetch: dict[str, list[dict[str, Any]]] = {}
    for term in virtual.terms(start, end):
        name = virtual.xorb_name(term.xorb)
        chunks = {"start": term.first, "end": term.end}
        terms.append({"hash": name, "unpacked_length": term.size, "range": chunks})
        claims: dict[str, str | int] = {
            "place": xet_caller.place,
            "sha256": file.sha256,
            "xorb": term.xorb,
        }
        signed = claims_for(xet_caller.caller, claims)
        token = hub.signer.sign(_PURPOSE, signed, LINK_TTL.total_seconds())
        url = f"{base}/cas/xorbs/{token}"
        stored = {"start": term.stored, "end": term.stored_end - 1}
        if version == 1:
            fetch[name] = [{"range": chunks, "url": url, "url_range": stored}]
        else:
            fetch[name] = [{"url": url, "ranges": [{"chunks": chunks, "bytes": stored}]}]
    answer = {
        "offset_into_first_range": start % CHUNK_BYTES,
        "terms": terms,
        "fetch_info" if version == 1 else "xorbs": fetch,
    }
    return JSONResponse(answer, headers={"Cache-Control": "no-store"})

"""One file of a model: its text, its picture, its tensors; or where to download it."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from deltahub.codecs.errors import InvalidSafetensors
from deltahub.codecs.files.safetensors import LENGTH_BYTES, TensorInfo, parse_header
from deltahub.registry.cards.headers import MAX_HEADER_BYTES, header_size
from deltahub.registry.catalog.entries import EntryInfo, find_entry
from deltahub.registry.catalog.history import last_changes
from deltahub.registry.catalog.pages.folders import has_folder
from deltahub.registry.errors import EntryNotFound
from deltahub.registry.reports.model.files import stored_files
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.connections.inner_paths import unescaped
from deltahub.server.errors import note_file
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.turns import reads
from deltahub.server.web.content import texts
from deltahub.server.web.content.markdown import render_card
from deltahub.server.web.model.common import AtRevision, load_at
from deltahub.server.web.rendering import quoted_part, quoted_path, render

router = APIRouter(route_class=BoundedRoute)

_SHOWN_TENSORS: Final = 100
_SHOWN_METADATA: Final = 100


@dataclass(frozen=True)
class ShownHeader:
    """What the header of a safetensors file says; only the first of its tensors."""

    metadata: Mapping[str, str]
    tensors: list[TensorInfo]
    n_tensors: int
    n_header_bytes: int


@router.get("/{namespace}/{name}/blob/{revision}/{path:path}")
@reads(is_long=True, is_heavy=True)
def show_file(
    namespace: str,
    name: str,
    revision: str,
    path: str,
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    plain: Annotated[bool, Query(description="the source of a card or JSON as it is")] = False,
) -> Response:
    """Show a file as far as a page can."""
    at = load_at(hub, viewer, namespace, name, revision)
    inner = unescaped(path).strip("/")
    if at.row is None:
        raise EntryNotFound("nothing has been committed to this model yet")
    with hub.registry.db.read() as session:
        if has_folder(session, at.row, inner):
            where = f"/{at.model.name}/tree/{quoted_part(at.name)}/{quoted_path(inner)}"
            return RedirectResponse(where, 307)
        entry = find_entry(session, at.row, inner)
        last = last_changes(session, at.row, {inner: entry.changed})[inner]
        stored = stored_files(session, viewer, at.row, [entry.file])[entry.file.id]
    note_file(request, at.model.name, entry.path)
    shown: dict[str, Any] = {"card": None, "text": None, "header": None, "is_image": False,
                             "fault": None}  # fmt: skip
    if entry.file.state != "lost":
        shown |= _contents(hub, at, entry, plain=plain)
    return render(
        request, hub, viewer, "model/blob.html", model=at.model, at=at, path=inner, entry=entry,
        last=last, stored=stored, plain=plain, **shown,
    )  # fmt: skip


def _contents(hub: Hub, at: AtRevision, entry: EntryInfo, *, plain: bool) -> dict[str, Any]:
    name = entry.path.lower()
    if name.endswith(".safetensors"):
        try:
            return {"header": _header(hub, entry)}
        except InvalidSafetensors as error:
            return {"fault": f"This is no safetensors file: {error}"}
    if name.endswith(texts.IMAGES):
        return {"is_image": entry.size <= texts.MAX_IMAGE_BYTES}
    is_whole = entry.size <= texts.MAX_BYTES
    if entry.mode == "lfs" and not is_whole:
        return {}
    end = min(entry.size, texts.MAX_BYTES)
    data = b"".join(hub.reader.stream_file(entry.file, 0, end))
    found: dict[str, Any] = {}
    if name.endswith((".md", ".markdown")) and is_whole and not plain:
        folder = entry.path.rpartition("/")[0]
        found["card"] = render_card(data, entry.sha256, at.model.name, at.name, folder)
        return found
    is_json = name.endswith((".json", ".ipynb")) and not plain
    found["text"] = texts.shown(data, is_whole=is_whole, is_json=is_json)
    return found


def _header(hub: Hub, entry: EntryInfo) -> ShownHeader | None:
    n_bytes = header_size(hub.reader, entry)
    if n_bytes > MAX_HEADER_BYTES:
        return None
    head = b"".join(hub.reader.stream_file(entry.file, 0, LENGTH_BYTES + n_bytes))
    header = parse_header(head, entry.size)
    metadata = dict(islice(header.metadata.items(), _SHOWN_METADATA))
    return ShownHeader(
        {key[:200]: value[:2000] for key, value in metadata.items()},
        list(header.tensors[:_SHOWN_TENSORS]),
        len(header.tensors),
        n_bytes,
    )

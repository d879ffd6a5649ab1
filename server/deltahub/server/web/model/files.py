"""Files of a model: folders page by page, with how each file is stored."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from deltahub.registry.catalog.entries import EntryInfo, entries_at
from deltahub.registry.catalog.history import CommitInfo, last_changes
from deltahub.registry.catalog.pages.folders import has_folder, read_folders, tree_page
from deltahub.registry.errors import EntryNotFound, InvalidRequest
from deltahub.registry.names import quoted
from deltahub.registry.reports.model.files import StoredFile, stored_files
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.connections.inner_paths import unescaped
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.turns import reads
from deltahub.server.web.model.common import load_at
from deltahub.server.web.rendering import quoted_part, quoted_path, render

router = APIRouter(route_class=BoundedRoute)

_PAGE: Final = 100


@dataclass(frozen=True)
class Row:
    """A file or a folder of a page. n_files: of a folder; entry, stored: of a file."""

    name: str
    path: str
    size: int
    last: CommitInfo | None
    n_files: int = 0
    entry: EntryInfo | None = None
    stored: StoredFile | None = None

    @property
    def changed_at(self) -> datetime | None:
        return None if self.last is None else self.last.created_at


@router.get("/{namespace}/{name}/tree")
def show_main(namespace: str, name: str) -> Response:
    """Lead to the files of main."""
    return RedirectResponse(f"/{quoted_path(f'{namespace}/{name}')}/tree/main", 307)


@router.get("/{namespace}/{name}/tree/{revision}")
@router.get("/{namespace}/{name}/tree/{revision}/{path:path}")
@reads(is_long=True)
def show_folder(
    namespace: str,
    name: str,
    revision: str,
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    path: str = "",
    after: Annotated[str, Query(max_length=2000)] = "",
) -> Response:
    """Show a folder: first its folders and files, then what each stores."""
    at = load_at(hub, viewer, namespace, name, revision)
    if at.row is None:
        return render(request, hub, viewer, "model/empty.html", tab="files", model=at.model)
    if "\0" in after:
        raise InvalidRequest("the place is wrong: take it from the link to the next page")
    folder = unescaped(path).strip("/")
    with hub.registry.db.read() as session:
        keys, has_more = tree_page(session, at.row, folder, after, _PAGE, is_recursive=False)
        if folder and not keys and not has_folder(session, at.row, folder):
            if folder in entries_at(session, at.row, [folder]):
                where = f"/{at.model.name}/blob/{quoted_part(at.name)}/{quoted_path(folder)}"
                return RedirectResponse(where, 307)
            raise EntryNotFound(f"revision {at.name[:200]} has no folder {quoted(folder)}")
        files = entries_at(session, at.row, [key for key in keys if not key.endswith("/")])
        folders = read_folders(session, at.row, [key[:-1] for key in keys if key.endswith("/")])
        changes = {each: entry.changed for each, entry in files.items()}
        changes |= {f"{each}/": sums.changed for each, sums in folders.items()}
        last = last_changes(session, at.row, changes)
        stored = stored_files(session, viewer, at.row, [entry.file for entry in files.values()])
    rows = []
    for key in keys:
        short = key[len(folder) + 1 if folder else 0 :].rstrip("/")
        if key.endswith("/"):
            sums = folders[key[:-1]]
            rows.append(Row(short, key[:-1], sums.n_bytes, last.get(key), sums.n_files))
        elif key in files:
            entry = files[key]
            rows.append(
                Row(short, key, entry.size, last.get(key), 0, entry, stored.get(entry.file.id))
            )
    return render(
        request, hub, viewer, "model/files.html", model=at.model, at=at, folder=folder, rows=rows,
        after=keys[-1] if has_more else None, is_first=not after,
    )  # fmt: skip

"""The commits of a model, and what each changed."""

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from deltahub.codecs.errors import CodecError
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.entries import EntryInfo
from deltahub.registry.catalog.history import ancestors, ingest_states, log
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.errors import DataLost, InvalidRequest, NotFound, NotReady
from deltahub.registry.reports.model.commits import (
    FileChange,
    TensorChanges,
    file_changes,
    parent_of,
    tensor_changes,
)
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.connections.inner_paths import unescaped
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.turns import reads
from deltahub.server.web.content import diffs, texts
from deltahub.server.web.content.diffs import TextDiff
from deltahub.server.web.model.common import load_at, load_model
from deltahub.server.web.rendering import quoted_path, render

router = APIRouter(route_class=BoundedRoute)

_PAGE: Final = 50
_MAX_MESSAGES: Final = 256 << 10  # bytes of messages after which a page of commits ends
_FILES: Final = 50
# Of one page of a commit: bytes of texts that are compared, and files whose tensors are.
_MAX_TEXT: Final = 1 << 20
_MAX_TENSOR_FILES: Final = 4
SHOWN_TENSORS: Final = 100


@dataclass(frozen=True)
class ShownChange:
    """A changed file, with the difference of its text or of its tensors where the page has it."""

    change: FileChange
    text: TextDiff | None = None
    tensors: TensorChanges | None = None


@router.get("/{namespace}/{name}/commits")
def show_main(namespace: str, name: str) -> Response:
    """Lead to the commits of main."""
    return RedirectResponse(f"/{quoted_path(f'{namespace}/{name}')}/commits/main", 307)


@router.get("/{namespace}/{name}/commits/{revision}")
@reads(is_long=True)
def show_commits(
    namespace: str,
    name: str,
    revision: str,
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    after: Annotated[str | None, Query(max_length=40)] = None,
) -> Response:
    """Show the commits up to a revision, the newest first."""
    at = load_at(hub, viewer, namespace, name, revision)
    if at.row is None:
        return render(request, hub, viewer, "model/empty.html", tab="commits", model=at.model)
    with hub.registry.db.read() as session:
        found = at.row
        if after is not None:
            found = resolve_revision(session, at.repository, after)
        chain = ancestors(session, found)
        commits = log(session, chain[:_PAGE], _MAX_MESSAGES)
        states = ingest_states(session, [each.id for each in commits])
    more = chain[len(commits)].commit if len(commits) < len(chain) else None
    return render(
        request, hub, viewer, "model/history/commits.html", model=at.model, at=at, commits=commits,
        states=states, after=more, n_left=len(chain) - len(commits),
    )  # fmt: skip


@router.get("/{namespace}/{name}/commit/{commit}")
@reads(is_long=True, is_heavy=True)
def show_commit(
    namespace: str,
    name: str,
    commit: str,
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    after: Annotated[str, Query(max_length=2000)] = "",
) -> Response:
    """Show what a commit changed."""
    model = load_model(hub, viewer, f"{namespace}/{name}")
    if "\0" in after:
        raise InvalidRequest("the place is wrong: take it from the link to the next page")
    with hub.registry.db.read() as session:
        repository = load_repository(session, viewer, model.name)
        row = resolve_revision(session, repository, unescaped(commit))
        parent = parent_of(session, row)
        (info,) = log(session, ancestors(session, row, row.number)[:1], _MAX_MESSAGES)
        changes, has_more = file_changes(session, row, parent, after, _FILES)
    return render(
        request, hub, viewer, "model/history/commit.html", model=model, info=info, parent=parent,
        is_first=row.parent_commit is None, changes=_shown(hub, changes),
        after=changes[-1].path if has_more else None, shown_tensors=SHOWN_TENSORS,
    )  # fmt: skip


def _shown(hub: Hub, changes: list[FileChange]) -> list[ShownChange]:
    left = _MAX_TEXT
    n_tensor_files = 0
    shown: list[ShownChange] = []
    for each in changes:
        before, after = each.before, each.after
        size = sum(entry.size for entry in (before, after) if entry is not None)
        name = each.path.lower()
        if name.endswith(".safetensors") and n_tensor_files < _MAX_TENSOR_FILES:
            n_tensor_files += 1
            shown.append(ShownChange(each, tensors=_tensors(hub, each)))
        elif _may_be_text(before) and _may_be_text(after) and size <= left:
            left -= size
            shown.append(ShownChange(each, text=_diff(hub, before, after)))
        else:
            shown.append(ShownChange(each))
    return shown


def _may_be_text(entry: EntryInfo | None) -> bool:
    is_small = entry is None or (entry.mode == "regular" and entry.size <= diffs.MAX_BYTES)
    return is_small and (entry is None or entry.file.state != "lost")


def _diff(hub: Hub, before: EntryInfo | None, after: EntryInfo | None) -> TextDiff | None:
    old, new = _text(hub, before), _text(hub, after)
    return None if old is None or new is None else diffs.diff(old, new)


def _text(hub: Hub, entry: EntryInfo | None) -> str | None:
    if entry is None:
        return ""
    try:
        data = b"".join(hub.reader.stream_file(entry.file, 0, entry.size))
    except (NotFound, NotReady, DataLost):
        return None
    return texts.decoded(data, is_whole=True)


def _tensors(hub: Hub, change: FileChange) -> TensorChanges | None:
    before = None if change.before is None else change.before.file
    after = None if change.after is None else change.after.file
    try:
        return tensor_changes(hub.registry, hub.reader, before, after)
    except (NotFound, NotReady, DataLost, CodecError):
        return None

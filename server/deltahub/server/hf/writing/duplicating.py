"""A model made from another one's files."""

from typing import Final, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse, Response

from deltahub.registry.access.caller import require_writer
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.cards.describe import describe_commit
from deltahub.registry.catalog import commit, repositories
from deltahub.registry.catalog.operations import CopyFile
from deltahub.registry.catalog.pages.entries import entry_pages
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.errors import Conflict, LimitExceeded, RepositoryExists, UploadNotFound
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hf.errors import NotSupported, refusal
from deltahub.server.hub import CallerDep, HubDep, NameDep
from deltahub.server.public_url import origin_of

router = APIRouter(route_class=BoundedRoute, prefix="/api/models/{namespace}/{name}")

_MESSAGE: Final = "Duplicate of {name}@{commit}"


class DuplicateIn(BaseModel):
    # Clients send more fields, which are of spaces.
    model_config = ConfigDict(extra="ignore")
    repository: str
    private: bool | None = None
    visibility: Literal["public", "private", "protected"] | None = None


@router.post("/duplicate")
def duplicate_model(
    name: NameDep, body: DuplicateIn, request: Request, hub: HubDep, caller: CallerDep
) -> Response:
    """Make a model of the files that another has at main, in one commit. No byte is copied.

    Without a word on it, the copy is as private as the original. Private data stays in its
    namespace and never becomes public, so such a copy is refused.
    """
    if body.visibility == "protected":
        raise NotSupported("this hub has no protected models: make the model private")
    writer = require_writer(caller)
    with hub.registry.db.read() as session:
        source = load_repository(session, caller, name)
        head = resolve_revision(session, source, DEFAULT_BRANCH)
    private = source.is_private if body.visibility is None else body.visibility == "private"
    if body.visibility is None and body.private is not None:
        private = body.private
    if source.is_private and not private:
        raise _private(name, body.repository)
    most = hub.registry.settings.max_operations
    operations: list[CopyFile] = []
    for page in entry_pages(hub.registry, head):
        operations += [
            CopyFile(entry.path, entry.sha256, "lfs" if entry.mode == "lfs" else "regular")
            for entry in page
        ]
        if len(operations) > most:
            raise LimitExceeded(
                f"{name} has more than {most} files, the most of one commit: download it, and"
                " upload it in several commits"
            )
    message = _MESSAGE.format(name=name, commit=head.commit)
    status, headers = 200, {}
    try:
        made = commit.create_with_commit(
            hub.registry, writer, body.repository, operations, message, private=private, copied=head
        )
    except RepositoryExists as error:
        made = repositories.get_repository(hub.registry, caller, body.repository)
        refused = refusal(error.code, str(error))
        status = refused.status_code
        headers = {key: refused.headers[key] for key in ("X-Error-Code", "X-Error-Message")}
    except UploadNotFound as error:
        if not source.is_private:
            raise Conflict(
                f"stored bytes of {name} are lost: push its files again first"
            ) from error
        raise _private(name, body.repository) from error
    if status == 200 and made.head is not None:
        describe_commit(hub.registry, hub.reader, made.name, made.head)
    url = f"{origin_of(request)}/{made.name}"
    return JSONResponse({"url": url, "name": made.name}, status_code=status, headers=headers)


def _private(name: str, to: str) -> Conflict:
    return Conflict(f"what is private in {name} is not linked to {to}: download it and upload it")

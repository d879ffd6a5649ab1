"""Creates, moves and deletes models, branches and tags; shows the caller and their models."""

from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from deltahub.registry.access.caller import NO_TOKEN, Caller, require_writer
from deltahub.registry.access.organizations import namespaces_of
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.cards import checks
from deltahub.registry.cards.describe import describe_commit
from deltahub.registry.cards.front_matter import BadCard, front_matter
from deltahub.registry.catalog import commit, refs, repositories
from deltahub.registry.catalog.entries import used_storage
from deltahub.registry.catalog.lists import search
from deltahub.registry.catalog.operations import AddFile
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.errors import Conflict, RepositoryExists, Unauthorized
from deltahub.registry.ingest import make_public
from deltahub.registry.names import git_attributes, quoted
from deltahub.registry.retention import drop, rewrite
from deltahub.registry.uploads.small_files import SmallFiles
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.connections.inner_paths import unescaped
from deltahub.server.hf.errors import NotSupported, refusal
from deltahub.server.hf.reading.entries import utc_text
from deltahub.server.hf.reading.revisions import plain_revision
from deltahub.server.hf.writing.withdrawing import withdraw_and_wait
from deltahub.server.hub import CallerDep, Hub, HubDep, NameDep
from deltahub.server.public_url import origin_of
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, prefix="/api")

_MAX_LISTED: Final = 10_000


class _Body(BaseModel):
    # Clients send more fields than this hub needs.
    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class RepositoryIn(_Body):
    name: str
    organization: str | None = None
    type: str | None = "model"
    private: bool | None = None
    visibility: Literal["public", "private", "protected"] | None = None

    @property
    def is_private(self) -> bool:
        return bool(self.private) or self.visibility == "private"


class MoveIn(_Body):
    from_repo: Annotated[str, Field(alias="fromRepo")]
    to_repo: Annotated[str, Field(alias="toRepo")]
    type: str | None = "model"


class SquashIn(_Body):
    message: str | None = None


class SettingsIn(_Body):
    # Unknown settings are kept, so that require_supported() can refuse them by name.
    model_config = ConfigDict(extra="allow")

    private: bool | None = None
    visibility: Literal["public", "private", "protected"] | None = None
    gated: bool | str | None = None

    def require_supported(self) -> None:
        """Raise NotSupported for settings that this hub lacks, unless they ask for the default."""
        if self.gated not in (None, False):
            raise NotSupported("this hub has no gated models: make the model private, with members")
        _require_visibility(self.visibility)
        unknown = [key for key, value in (self.model_extra or {}).items() if value is not None]
        if unknown:
            raise NotSupported(
                f"this hub does not keep the setting {quoted(unknown[0])}: of a model's settings it"
                " has private and visibility"
            )


class BranchIn(_Body):
    starting_point: Annotated[str | None, Field(alias="startingPoint")] = None


class TagIn(_Body):
    tag: str


class CardIn(_Body):
    content: str


@router.get("/whoami-v2")
def whoami(hub: HubDep, caller: CallerDep) -> JSONResponse:
    """Show the user and scope of the token, and the user's organizations."""
    if caller is None:
        raise Unauthorized(NO_TOKEN)
    spaces = namespaces_of(hub.registry, caller)
    organizations = [
        {"type": "org", "name": name, "fullname": name, "roleInOrg": role}
        for name, role in spaces.items()
        if name != caller.name
    ]
    token = {"displayName": caller.name, "role": "read" if caller.scope == "read" else "write"}
    return JSONResponse(
        {
            "type": "user",
            "id": f"{caller.user_id:024x}",
            "name": caller.name,
            "fullname": caller.name,
            "email": None,
            "isPro": False,
            "orgs": organizations,
            "auth": {"type": "access_token", "accessToken": token},
        }
    )


@router.get("/settings/repositories")
@router.get("/organizations/{namespace}/settings/repositories")
@reads(is_long=True)
def list_own(hub: HubDep, caller: CallerDep, namespace: str | None = None) -> JSONResponse:
    """List models in the caller's namespaces, or in one of them, with their stored bytes."""
    if caller is None:
        raise Unauthorized(NO_TOKEN)
    own = namespaces_of(hub.registry, caller)
    listed = [one for one in own if namespace is None or one.lower() == namespace.lower()]
    with hub.registry.db.read() as session:
        found: list[dict[str, Any]] = [
            {
                "id": item.name,
                "type": "model",
                "private": item.repository.is_private,
                "visibility": "private" if item.repository.is_private else "public",
                "updatedAt": utc_text(item.changed_at),
                "storage": used_storage(session, item.repository).n_bytes,
            }
            for one in listed
            for item in search.search(session, caller, namespace=one, limit=_MAX_LISTED).items
        ]
    whole = sum(item["storage"] for item in found)
    for item in found:
        item["storagePercent"] = 100 * item["storage"] / whole if whole else 0.0
    return JSONResponse(found)


@router.post("/repos/create")
def create_repository(
    body: RepositoryIn, request: Request, hub: HubDep, caller: CallerDep
) -> Response:
    """Create a model with an initial commit; 409 with the same answer if it exists."""
    _require_model(body.type)
    _require_visibility(body.visibility)
    writer = require_writer(caller)
    name = _full_name(body, writer)
    try:
        made = _create_with_commit(hub, writer, name, private=body.is_private)
    except RepositoryExists as error:
        known = repositories.get_repository(hub.registry, caller, name)
        refused = refusal(error.code, str(error))
        answer = _named(request, known) | {"error": str(error)}
        headers = {key: refused.headers[key] for key in ("X-Error-Code", "X-Error-Message")}
        return JSONResponse(answer, status_code=409, headers=headers)
    return JSONResponse(_named(request, made))


@router.delete("/repos/delete")
async def delete_repository(
    body: RepositoryIn, request: Request, hub: HubDep, caller: CallerDep
) -> JSONResponse:
    """Delete a model with all its revisions, after other models are stored without it."""
    _require_model(body.type)
    name = _full_name(body, require_writer(caller))
    await withdraw_and_wait(hub, request, caller, name, "delete")
    return JSONResponse({})


@router.post("/repos/move")
def move_repository(body: MoveIn, hub: HubDep, caller: CallerDep) -> JSONResponse:
    """Rename a model."""
    _require_model(body.type)
    try:
        repositories.move_repository(hub.registry, caller, body.from_repo, body.to_repo)
    except RepositoryExists as error:
        # Clients and their users know this sentence.
        called = f"A model repository called {body.to_repo} already exists"
        raise RepositoryExists(f"{called}: {error}") from error
    return JSONResponse({})


@router.put("/models/{namespace}/{name}/settings")
async def change_settings(
    name: NameDep, body: SettingsIn, request: Request, hub: HubDep, caller: CallerDep
) -> JSONResponse:
    """Make a model private or public. Refuses settings that this hub lacks."""
    was_private = await hub.change(caller, partial(_is_private, hub, caller, name))
    body.require_supported()
    private = body.private
    if body.visibility is not None:
        private = body.visibility != "public"
    if private is False:
        publish = partial(make_public.make_public, hub.registry, hub.reader, caller, name)
        await hub.publish(caller, publish)
    if private:
        await withdraw_and_wait(hub, request, caller, name, "private")
    is_private = bool(private) if private is not None else was_private
    shown = "private" if is_private else "public"
    return JSONResponse({"private": is_private, "visibility": shown, "gated": False})


def _is_private(hub: Hub, caller: Caller | None, name: str) -> bool:
    with hub.registry.db.read() as session:
        return load_repository(session, caller, name, "admin").is_private


@router.post("/models/{namespace}/{name}/branch/{branch}")
def create_branch(
    name: NameDep,
    branch: str,
    hub: HubDep,
    caller: CallerDep,
    body: BranchIn | None = None,
) -> JSONResponse:
    """Create a branch at a revision, by default that of main."""
    start = (body.starting_point if body else None) or DEFAULT_BRANCH
    made = refs.create_ref(
        hub.registry, caller, name, "branch", unescaped(branch), plain_revision(start)
    )
    return JSONResponse({"name": made.name, "commit": made.commit})


@router.delete("/models/{namespace}/{name}/branch/{branch}")
def delete_branch(name: NameDep, branch: str, hub: HubDep, caller: CallerDep) -> JSONResponse:
    """Delete a branch, and drop the revisions that no other branch or tag reaches."""
    drop.delete_ref(hub.registry, caller, name, "branch", unescaped(branch))
    return JSONResponse({})


@router.post("/models/{namespace}/{name}/tag/{revision}")
def create_tag(
    name: NameDep, revision: str, body: TagIn, hub: HubDep, caller: CallerDep
) -> JSONResponse:
    """Create a tag on a revision."""
    with hub.registry.db.read() as session:
        # Of two faults, clients expect to hear of this one.
        repository = load_repository(session, caller, name, "write")
        resolve_revision(session, repository, plain_revision(revision))
    made = refs.create_ref(hub.registry, caller, name, "tag", body.tag, plain_revision(revision))
    return JSONResponse({"name": made.name, "commit": made.commit})


@router.delete("/models/{namespace}/{name}/tag/{tag}")
def delete_tag(name: NameDep, tag: str, hub: HubDep, caller: CallerDep) -> JSONResponse:
    """Delete a tag, and drop the revisions that nothing else reaches."""
    drop.delete_ref(hub.registry, caller, name, "tag", unescaped(tag))
    return JSONResponse({})


@router.post("/models/{namespace}/{name}/super-squash/{branch}")
def squash_branch(
    name: NameDep, branch: str, body: SquashIn, hub: HubDep, caller: CallerDep
) -> JSONResponse:
    """Make one commit of a branch's history; commits that nothing else reaches are dropped."""
    message = body.message or f"Super-squash branch '{unescaped(branch)}'"
    made = rewrite.squash(hub.registry, caller, name, unescaped(branch), message)
    return JSONResponse({"commitId": made})


@router.post("/validate-yaml")
@reads()
def validate_card(body: CardIn) -> JSONResponse:
    """Check a card's front matter and its fields before it is committed; 400 with the errors.

    Clients need no token for this. The limits of front_matter bound the cost.
    """
    try:
        # Clients take blank lines before the front matter for nothing.
        card = front_matter(body.content.lstrip().encode("utf-8", "replace"))
    except BadCard as error:
        return JSONResponse({"errors": [{"message": str(error)}], "warnings": []}, status_code=400)
    wrong = [{"message": each} for each in checks.faults(card)]
    odd = [{"message": each} for each in checks.warnings(card)]
    return JSONResponse({"errors": wrong, "warnings": odd}, status_code=400 if wrong else 200)


def _create_with_commit(
    hub: Hub, caller: Caller, name: str, *, private: bool
) -> repositories.RepositoryInfo:
    """Create a model with an initial commit, because clients expect a branch main in it."""
    repositories.check_creatable(hub.registry, caller, name)  # before anything is uploaded
    data = git_attributes()
    files = SmallFiles(hub.registry, caller)
    digest = files.add(data)
    files.flush()
    first = [AddFile(".gitattributes", digest, len(data))]
    message = "initial commit"
    made = commit.create_with_commit(hub.registry, caller, name, first, message, private=private)
    if made.head is not None:
        describe_commit(hub.registry, hub.reader, name, made.head)
    return made


def _named(request: Request, known: repositories.RepositoryInfo) -> dict[str, str]:
    url = f"{origin_of(request)}/{known.name}"
    return {"url": url, "name": known.name, "id": f"{known.id:024x}"}


def _require_model(kind: str | None) -> None:
    if kind not in (None, "model"):
        raise NotSupported(f"this hub keeps models, and no {kind}s: leave the type out")


def _require_visibility(visibility: str | None) -> None:
    if visibility == "protected":
        raise NotSupported("this hub has no protected models: make the model private")


def _full_name(body: RepositoryIn, caller: Caller) -> str:
    if "/" in body.name:
        if body.organization not in (None, body.name.partition("/")[0]):
            raise Conflict(f"{body.name} does not lie in {body.organization}")
        return body.name
    return f"{body.organization or caller.name}/{body.name}"

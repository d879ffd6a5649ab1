"""Large files of a model: listing them, and copying them to other models."""

from typing import Annotated, Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from deltahub.registry.access.caller import require_writer
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.entries import large_files, sizes_in_repository
from deltahub.registry.names import validate_sha256
from deltahub.registry.retention import rewrite
from deltahub.registry.uploads.known_files import query_and_keep
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hf.errors import NotSupported
from deltahub.server.hf.reading.entries import utc_text
from deltahub.server.hub import CallerDep, HubDep, NameDep
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, prefix="/api/models/{namespace}/{name}/lfs-files")

_MAX_FILES: Final = 1000  # of one call; clients send fewer


class TargetIn(BaseModel):
    model_config = ConfigDict(extra="ignore")
    name: str
    type: str | None = "model"


class CopiedIn(BaseModel):
    model_config = ConfigDict(extra="ignore")
    sha256: str


class DeletionsIn(BaseModel):
    model_config = ConfigDict(extra="ignore", populate_by_name=True)
    sha: Annotated[list[str], Field(max_length=_MAX_FILES)]
    rewrite_history: Annotated[bool, Field(alias="rewriteHistory")] = True


class DeletionIn(BaseModel):
    model_config = ConfigDict(extra="ignore")
    deletions: DeletionsIn


class CopyIn(BaseModel):
    model_config = ConfigDict(extra="ignore")
    target: TargetIn
    files: Annotated[list[CopiedIn], Field(max_length=_MAX_FILES)]


@router.post("/duplicate")
def copy_lfs_files(name: NameDep, body: CopyIn, hub: HubDep, caller: CallerDep) -> JSONResponse:
    """Make files of this model known to another, so that a commit there needs no upload.

    Files that the other model cannot use are listed as failed. No private file becomes public: a
    file must already be stored in the other model's domain or in the public domain.
    """
    if body.target.type not in (None, "model"):
        raise NotSupported(f"this hub keeps models, and no {body.target.type}s")
    writer = require_writer(caller)
    hashes = {validate_sha256(file.sha256) for file in body.files}
    with hub.registry.db.read() as session:
        source = load_repository(session, caller, name)
        sizes = sizes_in_repository(session, source, hashes)
    known = set(query_and_keep(hub.registry, writer, body.target.name, list(sizes.items())))
    failed: list[dict[str, Any]] = []
    for sha256 in sorted(hashes - known):
        error = f"{name} has no file {sha256}"
        if sha256 in sizes:
            error = (
                f"what is private in {name} is not linked to {body.target.name}: download the file"
                " and upload it there"
            )
        failed.append({"sha256": sha256, "error": error})
    return JSONResponse({"failed": failed})


@router.post("/batch")
def delete_lfs_files(
    name: NameDep, body: DeletionIn, hub: HubDep, caller: CallerDep
) -> JSONResponse:
    """Delete large files from every revision. Commits that had one get new ids.

    Nobody can read the files from then on; garbage collection frees their bytes after the grace of
    dropped revisions.
    """
    if not body.deletions.rewrite_history:
        raise NotSupported(
            "this hub keeps no revision that names a file without its bytes: delete large files"
            " with rewrite_history=True"
        )
    hashes = {validate_sha256(sha256) for sha256 in body.deletions.sha}
    deleted = rewrite.delete_files(hub.registry, caller, name, hashes)
    return JSONResponse({"deleted": deleted})


@router.get("")
@reads(is_long=True, is_heavy=True)
def list_lfs_files(name: NameDep, hub: HubDep, caller: CallerDep) -> JSONResponse:
    """List the large files of all revisions, each once."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        files = [
            {
                "fileOid": large.file.sha256,
                "oid": large.file.sha256,
                "filename": large.path,
                "size": large.file.size,
                "pushedAt": utc_text(large.added_at),
                "ref": large.ref,
            }
            for large in large_files(session, repository)
        ]
    return JSONResponse(files)

"""Commits as Hugging Face clients send them: lines of JSON that contain small files."""

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from deltahub.codecs.files.lfs_pointer import MAX_POINTER_BYTES
from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.cards.declared_base import BASE_FILES, declared_base, read_base_files
from deltahub.registry.cards.describe import describe_commit
from deltahub.registry.cards.facts import read_small
from deltahub.registry.cards.plain_values import valid_text
from deltahub.registry.cards.pointers import pointers_among, sentence_on
from deltahub.registry.catalog.commit import CommitResult, commit, ingest_again
from deltahub.registry.catalog.entries import EntryInfo, entries_at
from deltahub.registry.catalog.operations import (
    AddFile,
    CopyFile,
    DeleteEntry,
    DeleteFolder,
    Operation,
)
from deltahub.registry.catalog.refs import (
    may_start_without_parent,
    require_branch,
    resolve_revision,
)
from deltahub.registry.errors import InvalidRequest, LimitExceeded, RegistryError
from deltahub.registry.names import LFS_BYTES, Mode, entry_mode, quoted, validate_path
from deltahub.registry.uploads.known_files import mark_missing
from deltahub.registry.uploads.preflight import check_sizes
from deltahub.registry.uploads.small_files import SmallFiles
from deltahub.server.body_limits import BoundedRoute, streams_body
from deltahub.server.errors import header_text
from deltahub.server.hf.errors import NotSupported
from deltahub.server.hf.reading.entries import blob_id
from deltahub.server.hf.reading.revisions import branch_of
from deltahub.server.hf.writing.gitignore import (
    MAX_IGNORE_BYTES,
    Ignore,
    IgnoreLimit,
    parse_attributes,
    parse_ignore,
)
from deltahub.server.hub import CallerDep, Hub, HubDep, NameDep
from deltahub.server.public_url import origin_of
from deltahub.server.streaming.bodies import BodyFeed

router = APIRouter(route_class=BoundedRoute, prefix="/api/models/{namespace}/{name}")

_MAX_FILES: Final = 1000  # of one preupload; clients ask for 256 at a time
# Bytes of a line: a small file in base64, and 64 KiB for its other fields.
_MAX_LINE: Final = LFS_BYTES * 4 // 3 + (64 << 10)
_IGNORE: Final = ".gitignore"
_ATTRIBUTES: Final = ".gitattributes"
_PULL_REQUEST: Final = "this hub has no pull requests: commit to a branch"

# Key of a line -> the form of its value, shown in the error for a wrong line.
_LINE_FORMS: Final = {
    "header": '{"summary": TEXT, "description": TEXT, "parentCommit": COMMIT}',
    "file": '{"path": PATH, "content": BASE64, "encoding": "base64"}',
    "lfsFile": '{"path": PATH, "algo": "sha256", "oid": SHA256, "size": BYTES}',
    "deletedFile": '{"path": PATH}',
    "deletedFolder": '{"path": PATH}',
    "deletedEntry": '{"path": PATH}',
}

CreatePr = Annotated[str | None, Query()]


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore")
    path: str
    size: Annotated[int, Field(ge=0)]


class PreuploadIn(BaseModel):
    model_config = ConfigDict(extra="ignore")
    files: Annotated[list[_File], Field(max_length=_MAX_FILES)]
    # The .gitignore of this commit; None for that of the branch.
    git_ignore: Annotated[str | None, Field(alias="gitIgnore")] = None
    # The .gitattributes of this commit, which clients in JavaScript send; None for the branch's.
    git_attributes: Annotated[str | None, Field(alias="gitAttributes")] = None


@router.post("/preupload/{revision}")
def preupload(
    name: NameDep,
    revision: str,
    body: PreuploadIn,
    hub: HubDep,
    caller: CallerDep,
    create_pr: CreatePr = None,
) -> JSONResponse:
    """Tell for each file whether to send it within the commit or before it, and its present id."""
    _refuse_pull_request(create_pr)
    branch = branch_of(revision)
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        # Checked here, so that a wrong branch is refused before large files are sent.
        require_branch(session, repository, branch)
        for file in body.files:
            validate_path(file.path, hub.registry.settings.max_path_bytes)
        paths = {_IGNORE, _ATTRIBUTES, *(file.path for file in body.files)}
        commit, entries = None, {}
        if not may_start_without_parent(session, repository, branch):
            found = resolve_revision(session, repository, branch)
            commit = found.commit
            entries = entries_at(session, found, paths)
    if mark_missing(hub.registry, [entry.file for entry in entries.values()]):
        with hub.registry.db.read() as session:
            entries = entries_at(session, found, paths)
    if commit is not None:
        # A client sends no commit if no file changed.
        ingest_again(hub.registry, caller, name, commit)
    try:
        ignore = _ignore(hub, body.git_ignore, entries.get(_IGNORE))
        ignored = {file.path for file in body.files if ignore.is_ignored(file.path)}
    except IgnoreLimit as error:
        raise LimitExceeded(f"the {_IGNORE} cannot be followed: {error}") from error
    modes = _modes(hub, body, entries.get(_ATTRIBUTES))
    files = []
    sizes = []
    for file in body.files:
        mode = modes[file.path]
        is_ignored = file.path in ignored and file.path != _IGNORE
        if mode == "lfs" and not is_ignored:
            sizes.append(file.size)
        shown: dict[str, Any] = {"path": file.path, "uploadMode": mode, "shouldIgnore": is_ignored}
        entry = entries.get(file.path)
        if entry is not None and entry.file.state != "lost":
            # With this id a client skips files that would not change. Lost ones it has to send.
            shown["oid"] = entry.file.sha256 if mode == "lfs" else blob_id(entry)
        files.append(shown)
    check_sizes(hub.registry, caller, name, sizes)
    return JSONResponse({"files": files} | ({"commitOid": commit} if commit else {}))


@router.post("/commit/{revision}")
@streams_body
async def create_commit(
    name: NameDep,
    revision: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    create_pr: CreatePr = None,
) -> JSONResponse:
    """Create a revision from the files in the body and those sent before, all or nothing."""
    request.state.has_unread_body = True
    _refuse_pull_request(create_pr)
    async with BodyFeed(request, hub.settings.idle_s) as feed:
        work = partial(_commit, hub, caller, name, branch_of(revision), feed.blocks)
        made, warning = await hub.upload(caller, work, feed.wait)
        request.state.has_unread_body = feed.has_unread_body
    url = f"{origin_of(request)}/{name}/commit/{made.commit}"
    # Python clients show it to the user; the text is what git shows after a push.
    headers = {"X-HF-Warning": f"lfs-pointers; {header_text(warning)}"} if warning else {}
    answer = {"success": True, "commitOid": made.commit, "commitUrl": url, "hookOutput": warning}
    return JSONResponse(answer, headers=headers)


def _modes(hub: Hub, body: PreuploadIn, there: EntryInfo | None) -> dict[str, Mode]:
    """Path -> how it is sent: as the .gitattributes of the commit, or else of the branch, says.

    A large file is never sent within a commit. Without a .gitattributes the names decide.
    """
    text = body.git_attributes
    if text is None and there is not None and there.file.state != "lost":
        data = read_small(hub.reader, there, MAX_IGNORE_BYTES)
        if data is None:
            raise _attributes_limit(f"it has more than {MAX_IGNORE_BYTES >> 10} KiB")
        text = data.decode("utf-8", "replace")
    if text is None:
        return {file.path: entry_mode(file.path, file.size) for file in body.files}
    try:
        kept = parse_attributes(text)
        return {
            file.path: "lfs" if file.size >= LFS_BYTES or kept.is_ignored(file.path) else "regular"
            for file in body.files
        }
    except IgnoreLimit as error:
        raise _attributes_limit(str(error)) from error


def _attributes_limit(reason: str) -> LimitExceeded:
    return LimitExceeded(
        f"the {_ATTRIBUTES} cannot be followed: {reason}; make it shorter, or delete it in a commit"
        " of its own first"
    )


def _ignore(hub: Hub, committed: str | None, there: EntryInfo | None) -> Ignore:
    """The parsed .gitignore of a commit, else of its branch. Raises IgnoreLimit."""
    text = committed or ""
    if committed is None and there is not None:
        data = read_small(hub.reader, there, MAX_IGNORE_BYTES)
        if data is None:
            raise IgnoreLimit(f"it has more than {MAX_IGNORE_BYTES >> 10} KiB")
        text = data.decode("utf-8", "replace")
    return parse_ignore(text)


def _refuse_pull_request(create_pr: str | None) -> None:
    if create_pr in ("1", "true", "True"):
        raise NotSupported(_PULL_REQUEST)


@dataclass
class _Commit:
    """The lines read so far."""

    message: str = ""
    parent: str | None = None
    # Path -> bytes, of the files of BASE_FILES.
    base_files: dict[str, bytes] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)


def _commit(
    hub: Hub,
    caller: Caller | None,
    name: str,
    branch: str,
    body: Callable[[], Iterator[bytes]],
) -> tuple[CommitResult, str]:
    """The commit, and what to warn of; empty for nothing."""
    reg = hub.registry
    writer = require_writer(caller)
    with reg.db.read() as session:
        load_repository(session, writer, name, "write")
    request = _Commit()
    files = SmallFiles(reg, writer)
    for number, line in enumerate(_lines(body()), 1):
        cancellation.check()
        if len(request.operations) > reg.settings.max_operations:
            limit = reg.settings.max_operations
            raise LimitExceeded(f"a commit has at most {limit} operations")
        try:
            item = json.loads(line)
            key, value = item["key"], item["value"]
            _add_line(files, request, key, value)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidRequest(_line_error(number, line)) from error
    if not request.operations:
        raise InvalidRequest("the commit changes nothing: it names no file")
    files.flush()
    # Files that were sent before the commit may be small as well: the .gitattributes decides.
    sent = read_base_files(reg, hub.reader, writer, name, request.operations)
    base_files = sent | request.base_files
    base = declared_base(reg, hub.reader, writer, name, branch, base_files)
    made = commit(
        reg, writer, name, branch, request.operations, request.message, request.parent, base
    )
    if made.changed:
        describe_commit(reg, hub.reader, name, made.commit)
    return made, _warning(hub, writer, name, made.commit, request.operations)


def _warning(
    hub: Hub, caller: Caller, name: str, commit: str, operations: Sequence[Operation]
) -> str:
    small = [
        each.path
        for each in operations
        if isinstance(each, AddFile) and each.size <= MAX_POINTER_BYTES
    ]
    if not small:
        return ""
    try:
        with hub.registry.db.read() as session:
            repository = load_repository(session, caller, name)
            entries = entries_at(session, resolve_revision(session, repository, commit), small)
    except RegistryError:
        return ""  # the commit is made, and somebody has dropped it since
    found = pointers_among(hub.reader, entries.values())
    return sentence_on(found) if found else ""


def _line_error(number: int, line: bytes) -> str:
    """The error for a line that cannot be read: the form of its key, or all keys."""
    try:
        key = json.loads(line)["key"]
        shown = f'{{"key": "{key}", "value": {_LINE_FORMS[key]}}}'
    except (ValueError, KeyError, TypeError, RecursionError):
        shown = f'{{"key": ..., "value": {{...}}}} with one of the keys {", ".join(_LINE_FORMS)}'
    return f"line {number} of the commit cannot be read; expected is the JSON {shown}"


def _add_line(files: SmallFiles, commit: _Commit, key: str, value: Mapping[str, Any]) -> None:
    """Add a line to the commit. Raises ValueError, KeyError, TypeError if it is malformed."""
    if key == "header":
        summary, description = str(value.get("summary") or ""), str(value.get("description") or "")
        commit.message = valid_text(f"{summary}\n\n{description}" if description else summary)
        parent = value.get("parentCommit")
        if not isinstance(parent, str | None):
            raise TypeError("parentCommit")
        commit.parent = parent or None
        return
    path = str(value["path"])
    if key == "file":
        data = _content(path, value)
        digest = files.add(data)
        commit.operations.append(AddFile(path, digest, len(data), "regular"))
        if path in BASE_FILES:
            commit.base_files[path] = data
    elif key == "lfsFile":
        _check_algorithm(path, value)
        # Without a size the client copies a file that the hub has.
        oid = str(value["oid"])
        size = value.get("size")
        add = CopyFile(path, oid, "lfs") if size is None else AddFile(path, oid, size, "lfs")
        commit.operations.append(add)
    elif key in ("deletedFile", "deletedEntry"):
        # delete_file() names folders so, too, if no slash ends their path.
        commit.operations.append(DeleteEntry(path.rstrip("/")))
    elif key == "deletedFolder":
        commit.operations.append(DeleteFolder(path.rstrip("/")))
    else:
        raise NotSupported(f"this hub knows no operation {quoted(str(key))} of a commit")


def _content(path: str, value: Mapping[str, Any]) -> bytes:
    encoding = value.get("encoding", "utf-8")
    try:
        if encoding == "base64":
            data = base64.b64decode(value["content"], validate=True)
        elif encoding == "utf-8":
            data = str(value["content"]).encode()
        else:
            raise InvalidRequest(f"{quoted(path)}: the encoding {quoted(str(encoding))} is unknown")
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidRequest(f"{quoted(path)}: its content is not {encoding}") from error
    return data


def _check_algorithm(path: str, value: Mapping[str, Any]) -> None:
    algorithm = value.get("algo", "sha256")
    size = value.get("size")
    if algorithm != "sha256":
        raise InvalidRequest(f"{quoted(path)}: files are known by sha256, not {algorithm}")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
        raise InvalidRequest(f"{quoted(path)}: the size must be a number")


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the non-empty lines of a body in blocks. Raises LimitExceeded for too long a line."""
    pieces: list[bytes] = []
    n_bytes = 0
    for block in blocks:
        *ended, rest = block.split(b"\n")
        for piece in ended:
            pieces.append(piece)
            line = b"".join(pieces).strip()
            pieces, n_bytes = [], 0
            if line:
                yield line
        pieces.append(rest)
        n_bytes += len(rest)
        if n_bytes > _MAX_LINE:
            raise LimitExceeded(
                f"a line of the commit has more than {_MAX_LINE} bytes: files of"
                f" {LFS_BYTES} bytes and more are sent before the commit"
            )
    last = b"".join(pieces).strip()
    if last:
        yield last

"""Typed calls of the hub's /v1 API: one method for each operation, and no policy."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, BinaryIO, Final, TypeVar

from deltahub.client.api.info_shape import Info
from deltahub.client.api.parsing import field_of, items_of, record
from deltahub.client.api.transport import LONG_TIMEOUT_S, Transport
from deltahub.client.api.wire import LARGE_ANSWER, Reply, odd_answer
from deltahub.client.errors import JobNotFound, NotFound
from deltahub.client.names import namespace_name, repository_path
from deltahub.client.records import (
    CommitResult,
    Entry,
    FrameLinks,
    Job,
    JobId,
    JobProgress,
    LogLine,
    RecipePlan,
    Ref,
    Repository,
    Revision,
    Token,
    UploadStatus,
    WhoAmI,
    Withdrawal,
)

_T = TypeVar("_T")

# Ids in one request: well below the hub's limit. An id takes 65 bytes of JSON.
_QUERY_BATCH = 10_000
# The largest recipe of the format, as in deltahub.codecs, which takes long to import.
MAX_RECIPE: Final = 64 << 20
_MAX_REPOSITORIES: Final = 1_000_000
# What a page without repositories counts as: a search looks at some thousands for each page.
_SHORT_PAGE: Final = 100
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_JOB_ID: Final = re.compile("[0-9A-Za-z_-]{1,64}")
_NUMBER: Final = re.compile("[0-9]{1,18}")


class Api:
    """One hub's native API."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    # -- account and repositories ----------------------------------------------------------

    def whoami(self) -> WhoAmI:
        return self._read(partial(record, WhoAmI), "GET", "/v1/whoami")

    def list_tokens(self) -> list[Token]:
        return self._read(partial(items_of, Token), "GET", "/v1/tokens")

    def create_token(self, label: str, scope: str, ttl_s: int | None) -> str:
        body = {"label": label, "scope": scope, "ttl_s": ttl_s}
        answer = self.transport.call("POST", "/v1/tokens", json_body=body)
        secret: str = answer.read(lambda value: field_of(value, "token", str))
        return secret

    def delete_token(self, token_id: int) -> None:
        self.transport.call("DELETE", f"/v1/tokens/{token_id}")

    def create_repository(self, name: str, *, private: bool, push_bytes: int = 0) -> Repository:
        """push_bytes: of the files that are to be pushed: LimitExceeded if there is no room."""
        repository_path(name)
        body: dict[str, Any] = {"name": name, "private": private}
        if push_bytes:
            body["push_bytes"] = push_bytes
        parse = partial(record, Repository)
        return self._read(parse, "POST", "/v1/repositories", json_body=body)

    def get_repository(self, name: str) -> Repository:
        return self._read(partial(record, Repository), "GET", repository_path(name))

    def set_private(self, name: str, *, private: bool) -> Repository | Withdrawal:
        """The changed repository, or the job that changes it later."""
        body = {"private": private}
        path = repository_path(name)
        answer = self.transport.call("PATCH", path, json_body=body, timeout_s=LONG_TIMEOUT_S)
        if answer.status == 202:
            return answer.read(partial(record, Withdrawal))
        return answer.read(partial(record, Repository))

    def delete_repository(self, name: str) -> Withdrawal | None:
        """None if the repository is deleted, or the job that deletes it later."""
        path = repository_path(name)
        answer = self.transport.call("DELETE", path, timeout_s=LONG_TIMEOUT_S)
        return answer.read(partial(record, Withdrawal)) if answer.status == 202 else None

    def list_repositories(
        self, namespace: str | None = None, search: str | None = None, sort: str | None = None
    ) -> Iterator[Repository]:
        """Every repository that the caller may read, page by page."""
        cursor: str | None = None
        n_found = 0
        if namespace is not None:
            namespace_name(namespace)
        while True:
            query = {
                "namespace": namespace,
                "search": search,
                "limit": 200,
                "cursor": cursor,
                "sort": sort,
            }
            answer = self.transport.call("GET", "/v1/repositories", query=query)
            page = answer.read(partial(items_of, Repository))
            yield from page
            before = cursor
            cursor = answer.read(lambda value: field_of(value, "next_cursor", str | None))
            if not cursor:
                return
            n_found += max(len(page), _SHORT_PAGE)
            if cursor == before or n_found > _MAX_REPOSITORIES:
                raise odd_answer(answer.request, "its pages do not end")

    def list_refs(self, name: str) -> list[Ref]:
        path = f"{repository_path(name)}/refs"
        return self._read(partial(items_of, Ref), "GET", path, limit=LARGE_ANSWER)

    # -- revisions -------------------------------------------------------------------------

    def get_revision(self, name: str, revision: str) -> Revision:
        path, query = f"{repository_path(name)}/revision", {"revision": revision}
        answer = self.transport.call("GET", path, query=query, limit=LARGE_ANSWER)
        found = answer.read(partial(record, Revision))
        if _COMMIT.fullmatch(revision) and found.commit != revision:
            raise odd_answer(answer.request, f"it is another commit, {found.commit}")
        return found

    def find_revision(self, name: str, revision: str) -> Revision | None:
        """The revision, or None if the repository or the branch does not exist yet."""
        try:
            return self.get_revision(name, revision)
        except NotFound:
            return None

    def get_info(self, name: str, revision: str, *, brief: bool) -> dict[str, Any]:
        path = f"{repository_path(name)}/info"
        query = {"revision": revision, "brief": "true" if brief else None}
        return self._read(_info, "GET", path, query=query, limit=LARGE_ANSWER)

    def commit(
        self,
        name: str,
        *,
        ref: str,
        message: str | None,
        parent: str | None,
        base: str | None,
        operations: Sequence[Mapping[str, Any]],
        step: tuple[int, int | None] | None = None,
    ) -> CommitResult:
        """Safe to repeat: the hub makes no second commit of the same content on a branch.

        step: (its number, the step that it follows), to make the commit a step of a run.
        """
        body: dict[str, Any] = {
            "ref": ref,
            "message": message or "",
            "parent": parent,
            "base": base,
            "operations": list(operations),
        }
        if step is not None:
            body["step"] = {"number": step[0], "after": step[1]}
        path = f"{repository_path(name)}/commits"
        parse = partial(record, CommitResult)
        return self._read(parse, "POST", path, json_body=body, timeout_s=LONG_TIMEOUT_S)

    # -- reading files ---------------------------------------------------------------------

    def open_file(
        self, name: str, commit: str, entry: Entry, start: int, end: int
    ) -> AbstractContextManager[Reply]:
        """A response with bytes [start, end) of a file. Not retried."""
        headers = {} if (start, end) == (0, entry.size) else {"Range": f"bytes={start}-{end - 1}"}
        path = f"{repository_path(name)}/files/{entry.path}"
        return self.transport.open("GET", path, query={"revision": commit}, headers=headers)

    def get_recipe_plan(self, name: str, commit: str, path: str) -> RecipePlan:
        url = f"{repository_path(name)}/recipes/{path}"
        query = {"revision": commit}
        return self._read(partial(record, RecipePlan), "GET", url, query=query, limit=LARGE_ANSWER)

    def get_recipe_bytes(self, name: str, commit: str, path: str) -> bytes:
        url = f"{repository_path(name)}/recipe-bytes/{path}"
        query = {"revision": commit}
        return self.transport.call("GET", url, query=query, limit=MAX_RECIPE).body

    def open_frames(
        self, name: str, commit: str, tensors: Iterable[str]
    ) -> AbstractContextManager[Reply]:
        """A response with the frames of the tensors, back to back in that order. Not retried."""
        path = f"{repository_path(name)}/frames"
        body = '{"tensors":["' + '","'.join(tensors) + '"]}'
        headers = {"Content-Type": "application/json"}
        return self.transport.open(
            "POST", path, query={"revision": commit}, body=body.encode(), headers=headers
        )

    def get_frame_links(
        self, name: str, commit: str, tensors: Sequence[str], origin: str
    ) -> FrameLinks:
        """Links to frames of the first of these tensors, all of which lead to this origin."""
        path = f"{repository_path(name)}/frames/links"
        answer = self.transport.call(
            "POST", path, query={"revision": commit}, json_body={"tensors": list(tensors)}
        )
        found = answer.read(partial(record, FrameLinks))
        if not 1 <= found.n_tensors <= len(tensors):
            raise odd_answer(answer.request, f"it is about {found.n_tensors} tensors")
        for link in found.links:
            if not link.url.startswith(f"{origin}/"):
                raise odd_answer(answer.request, "a link leads elsewhere than the hub said")
            if any(frame.tensor >= found.n_tensors for frame in link.frames):
                raise odd_answer(answer.request, "a link is for a tensor that was not asked")
            if not link.frames or sum(each.length for each in link.frames) != link.end - link.start:
                raise odd_answer(answer.request, "the frames of a link do not fill it")
        return found

    # -- sending ---------------------------------------------------------------------------

    def get_upload(self, sha256: str, size: int) -> UploadStatus | None:
        """How much of this upload the hub has; None if the caller has sent nothing of it.

        size: bytes of the whole file.
        """
        try:
            answer = self.transport.call("HEAD", f"/v1/uploads/{sha256}")
        except NotFound:
            return None
        received, total = (
            int(text) if _NUMBER.fullmatch(text) else -1
            for text in (answer.headers.get(f"Upload-{key}", "") for key in ("Offset", "Length"))
        )
        if total != size or not 0 <= received <= size:
            raise odd_answer(answer.request, f"it does not say how many of {size} bytes have come")
        return UploadStatus(received, size, answer.headers.get("Upload-Complete") == "1")

    def put_upload(
        self, sha256: str, file: BinaryIO, start: int, size: int, on_sent: Callable[[int], None]
    ) -> bool:
        """Sends the file from byte `start`; whether the hub has all of it now. Not retried."""
        path = f"/v1/uploads/{sha256}"
        answer = self.transport.send_file(path, file, start, size, on_sent=on_sent)
        return answer.status in (200, 201)

    def require_write(self, name: str) -> None:
        """Unauthorized or Forbidden unless the caller may push to the repository."""
        # A query for no files: the hub answers it only to callers who may write.
        path = f"{repository_path(name)}/files/query"
        self.transport.call("POST", path, json_body={"files": []})

    def query_files(self, name: str, files: Mapping[str, int]) -> set[str]:
        """The files, of these (SHA-256 -> size), that a commit may name without an upload."""
        found: set[str] = set()
        items = list(files.items())
        path = f"{repository_path(name)}/files/query"
        for i in range(0, len(items), _QUERY_BATCH):
            queried = [{"sha256": key, "size": size} for key, size in items[i : i + _QUERY_BATCH]]
            found.update(
                self._read(
                    _have, "POST", path, json_body={"files": queried}, timeout_s=LONG_TIMEOUT_S
                )
            )
        return found & files.keys()

    def query_tensors(self, name: str, tensors: Mapping[str, int]) -> set[str]:
        """Which of the tensors (id in hex -> bytes) the hub has for us and holds for a day."""
        found: set[str] = set()
        items = list(tensors.items())
        path = f"{repository_path(name)}/tensors/query"
        for i in range(0, len(items), _QUERY_BATCH):
            body = {"tensors": [list(item) for item in items[i : i + _QUERY_BATCH]]}
            found.update(self._read(_have, "POST", path, json_body=body, timeout_s=LONG_TIMEOUT_S))
        return found & tensors.keys()

    def accept_pack(self, name: str, sha256: str) -> None:
        path = f"{repository_path(name)}/packs"
        body = {"sha256": sha256}
        self.transport.call("POST", path, json_body=body, timeout_s=LONG_TIMEOUT_S)

    def put_recipe(self, name: str, recipe: bytes) -> str | None:
        """The id of the job that verifies the file; None if the hub has the file already."""
        path = f"{repository_path(name)}/recipes"
        return self._read(_recipe_job, "POST", path, body=recipe, timeout_s=LONG_TIMEOUT_S)

    # -- jobs ------------------------------------------------------------------------------

    def get_job(self, job_id: str) -> Job:
        return self._read(_job, "GET", f"/v1/jobs/{_job_id(job_id)}")

    def cancel_job(self, job_id: str) -> Job:
        return self._read(_job, "POST", f"/v1/jobs/{_job_id(job_id)}/cancel")

    def retry_job(self, job_id: str) -> Job:
        return self._read(_job, "POST", f"/v1/jobs/{_job_id(job_id)}/retry")

    def list_jobs(self, state: str | None, kind: str | None, limit: int) -> list[Job]:
        query = {"state": state, "kind": kind, "limit": str(limit)}
        given = {key: value for key, value in query.items() if value is not None}
        return self._read(_jobs, "GET", "/v1/jobs", query=given)

    def job_log(self, job_id: str, after: int) -> list[LogLine]:
        parse = partial(items_of, LogLine)
        path = f"/v1/jobs/{_job_id(job_id)}/log"
        return list(self._read(parse, "GET", path, query={"after": str(after)}))

    def ask(self, kind: str, arguments: Mapping[str, Any], priority: str, key: str | None) -> Job:
        body = {
            "kind": kind,
            "arguments": dict(arguments),
            "priority": priority,
            "idempotency_key": key,
        }
        return self._read(_job, "POST", "/v1/jobs", json_body=body)

    def _read(self, parse: Callable[[Any], _T], method: str, path: str, **request: Any) -> _T:
        """What `parse` makes of the JSON of an answer. BadResponse, with the URL, if it is odd."""
        return self.transport.call(method, path, **request).read(parse)


def _info(value: Any) -> dict[str, Any]:
    """The answer to `info` as it came: a newer hub may tell more of it."""
    record(Info, value)
    return dict(value)


def _job(value: Any) -> Job:
    job = record(Job, value)
    if job.progress is not None:
        field_of(value, "progress", JobProgress)
    return job


def _jobs(value: Any) -> list[Job]:
    items_of(Job, value)  # which checks the list
    return [_job(item) for item in value["items"]]


def _job_id(text: str) -> str:
    """The id as a part of a path; JobNotFound for what no job has as its id."""
    if not _JOB_ID.fullmatch(text):
        raise JobNotFound(f"there is no job {text[:80]!r}, or you may not see it")
    return text


def _have(value: Any) -> set[str]:
    return set(field_of(value, "have", tuple[str, ...]))


def _recipe_job(value: Any) -> str | None:
    is_ready = field_of(value, "state", str) == "ready"
    return None if is_ready else str(field_of(value, "job_id", JobId))

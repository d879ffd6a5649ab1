"""Typed calls of the hub's /v1 API: one method for each operation, and no policy."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from deltahub.client.api.transport import LONG_TIMEOUT_S, Transport
from deltahub.client.api.wire import Reply
from deltahub.client.errors import BadResponse, NotFound
from deltahub.client.names import namespace_name, repository_path
from deltahub.client.records import (
    CommitResult,
    Entry,
    HeldTensors,
    Job,
    RecipePlan,
    Ref,
    Repository,
    Revision,
    UploadStatus,
    WhoAmI,
    Withdrawal,
    record,
)

# Ids in one request: well below the hub's limit. An id takes 65 bytes of JSON.
_QUERY_BATCH = 10_000


class Api:
    """One hub's native API."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    # -- account and repositories ----------------------------------------------------------

    def whoami(self) -> WhoAmI:
        return record(WhoAmI, self._get("/v1/whoami"))

    def create_repository(self, name: str, *, private: bool) -> Repository:
        repository_path(name)
        body = {"name": name, "private": private}
        answer = self.transport.call("POST", "/v1/repositories", json_body=body)
        return record(Repository, answer.json())

    def get_repository(self, name: str) -> Repository:
        return record(Repository, self._get(repository_path(name)))

    def set_private(self, name: str, *, private: bool) -> Repository | Withdrawal:
        """The changed repository, or the job that changes it later."""
        body = {"private": private}
        path = repository_path(name)
        answer = self.transport.call("PATCH", path, json_body=body, timeout_s=LONG_TIMEOUT_S)
        if answer.status == 202:
            return record(Withdrawal, answer.json())
        return record(Repository, answer.json())

    def delete_repository(self, name: str) -> Withdrawal | None:
        """None if the repository is deleted, or the job that deletes it later."""
        path = repository_path(name)
        answer = self.transport.call("DELETE", path, timeout_s=LONG_TIMEOUT_S)
        return record(Withdrawal, answer.json()) if answer.status == 202 else None

    def list_repositories(
        self, namespace: str | None = None, search: str | None = None
    ) -> Iterator[Repository]:
        """Every repository that the caller may read, page by page."""
        cursor: str | None = None
        if namespace is not None:
            namespace_name(namespace)
        while True:
            query = {"namespace": namespace, "search": search, "limit": 200, "cursor": cursor}
            page = _object(self.transport.call("GET", "/v1/repositories", query=query).json())
            for item in _list(page, "items"):
                yield record(Repository, item)
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def list_refs(self, name: str) -> list[Ref]:
        page = _object(self._get(f"{repository_path(name)}/refs"))
        return [record(Ref, item) for item in _list(page, "items")]

    # -- revisions -------------------------------------------------------------------------

    def get_revision(self, name: str, revision: str) -> Revision:
        path = f"{repository_path(name)}/revision"
        answer = self.transport.call("GET", path, query={"revision": revision})
        return record(Revision, answer.json())

    def find_revision(self, name: str, revision: str) -> Revision | None:
        """The revision, or None if the repository or the branch does not exist yet."""
        try:
            return self.get_revision(name, revision)
        except NotFound:
            return None

    def get_info(self, name: str, revision: str) -> dict[str, Any]:
        path = f"{repository_path(name)}/info"
        return _object(self.transport.call("GET", path, query={"revision": revision}).json())

    def commit(
        self,
        name: str,
        *,
        ref: str,
        message: str | None,
        parent: str | None,
        base: str | None,
        operations: Sequence[Mapping[str, Any]],
    ) -> CommitResult:
        """Safe to repeat: the hub makes no second commit of the same content on a branch."""
        body = {
            "ref": ref,
            "message": message or "",
            "parent": parent,
            "base": base,
            "operations": list(operations),
        }
        path = f"{repository_path(name)}/commits"
        return record(CommitResult, self.transport.call("POST", path, json_body=body).json())

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
        return record(
            RecipePlan, self.transport.call("GET", url, query={"revision": commit}).json()
        )

    def get_recipe_bytes(self, name: str, commit: str, path: str) -> bytes:
        url = f"{repository_path(name)}/recipe-bytes/{path}"
        return self.transport.call("GET", url, query={"revision": commit}).body

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

    # -- sending ---------------------------------------------------------------------------

    def get_upload(self, sha256: str) -> UploadStatus | None:
        """How much of this upload the hub has; None if the caller has sent nothing of it."""
        try:
            answer = self.transport.call("HEAD", f"/v1/uploads/{sha256}")
        except NotFound:
            return None
        try:
            return UploadStatus(
                received=int(answer.headers["Upload-Offset"]),
                size=int(answer.headers["Upload-Length"]),
                complete=answer.headers["Upload-Complete"] == "1",
            )
        except (TypeError, ValueError) as exc:
            raise BadResponse(f"the hub says nothing useful of upload {sha256}") from exc

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
            answer = _object(self.transport.call("POST", path, json_body={"files": queried}).json())
            found.update(str(item) for item in _list(answer, "have"))
        return found & files.keys()

    def query_tensors(self, name: str, tensors: Mapping[str, int]) -> HeldTensors:
        """Which of the tensors (id in hex -> bytes) the hub has for us and holds for a day."""
        found: set[str] = set()
        items = list(tensors.items())
        path = f"{repository_path(name)}/tensors/query"
        # A query about no tensors, too, asks for the depth limit.
        for i in range(0, max(len(items), 1), _QUERY_BATCH):
            body = {"tensors": [list(item) for item in items[i : i + _QUERY_BATCH]]}
            answer = _object(self.transport.call("POST", path, json_body=body).json())
            found.update(str(item) for item in _list(answer, "have"))
            max_depth = _count(answer, "max_depth")
        return HeldTensors(found & tensors.keys(), max_depth)

    def accept_pack(self, name: str, sha256: str) -> None:
        path = f"{repository_path(name)}/packs"
        body = {"sha256": sha256}
        self.transport.call("POST", path, json_body=body, timeout_s=LONG_TIMEOUT_S)

    def put_recipe(self, name: str, recipe: bytes) -> str | None:
        """The id of the job that verifies the file; None if the hub has the file already."""
        path = f"{repository_path(name)}/recipes"
        answer = _object(self.transport.call("POST", path, body=recipe).json())
        if answer.get("state") == "ready":
            return None
        return str(answer["job_id"])

    # -- jobs ------------------------------------------------------------------------------

    def get_job(self, job_id: str) -> Job:
        return record(Job, self._get(f"/v1/jobs/{job_id}"))

    def cancel_job(self, job_id: str) -> None:
        self.transport.call("POST", f"/v1/jobs/{job_id}/cancel")

    def _get(self, path: str) -> Any:
        return self.transport.call("GET", path).json()


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadResponse(f"the hub sent {type(value).__name__} where an object belongs")
    return value


def _count(value: Mapping[str, Any], key: str) -> int:
    found = value.get(key)
    if type(found) is not int or found < 0:
        raise BadResponse(f"the hub's answer has no number of 0 or more named {key}")
    return found


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    found = value.get(key)
    if not isinstance(found, list):
        raise BadResponse(f"the hub's answer has no list named {key}")
    return found

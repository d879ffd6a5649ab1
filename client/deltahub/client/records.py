"""The hub's answers as typed values. Fields that a newer hub adds are ignored."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from deltahub.client.errors import BadResponse

_T = TypeVar("_T")


@dataclass(frozen=True)
class Repository:
    """A repository as `list` and `create` return it. head: commit of `main`, None when empty.

    role: the caller's access: read, write or admin.
    """

    name: str
    private: bool = False
    role: str | None = None
    created_at: str | None = None
    head: str | None = None


@dataclass(frozen=True)
class Withdrawal:
    """A change of a repository that a job does. models: stored as differences from it until then.

    Models that the caller may not read do not count.
    """

    job_id: str
    models: int = 0


@dataclass(frozen=True)
class Entry:
    """A file of a revision. etag: its git blob id (mode regular) or its SHA-256 (mode lfs)."""

    path: str
    size: int
    sha256: str
    etag: str
    mode: str = "lfs"
    state: str = "landed"
    git_blob_id: str | None = None


@dataclass(frozen=True)
class DeclaredBase:
    """The base that a push declared, and its commit if the hub found one."""

    declared: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class Revision:
    """An immutable commit. job_id: its ingest job, None when there was nothing to ingest."""

    commit: str
    parent: str | None = None
    message: str = ""
    author: str | None = None
    created_at: str | None = None
    base: DeclaredBase = DeclaredBase()
    job_id: str | None = None
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Ref:
    kind: str
    name: str
    commit: str


@dataclass(frozen=True)
class HeldTensors:
    """Which tensors the hub has for us, as ids in hex, and the longest chain of deltas it takes."""

    ids: Set[str]
    max_depth: int


@dataclass(frozen=True)
class PlannedTensor:
    """How the hub keeps one tensor: encoded bytes, and the tensors that decoding needs.

    depth: the longest chain of deltas below it, 0 without a base.
    """

    id: str
    size: int
    encoded_size: int
    depth: int
    codec: str = "raw"
    bases: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecipePlan:
    """A file's tensors as the hub stores them. recipe: BLAKE3 of the recipe's bytes."""

    recipe: str
    size: int
    sha256: str
    tensors: tuple[PlannedTensor, ...] = ()


@dataclass(frozen=True)
class UploadStatus:
    """How many bytes of an upload the hub has received."""

    received: int
    size: int
    complete: bool


@dataclass(frozen=True)
class JobError:
    code: str = "job_failed"
    message: str = ""


@dataclass(frozen=True)
class Job:
    """Background work. state: queued, running, done, failed or cancelled.

    waits_for: what an unfinished job waits for; None while it runs, and from an older hub.
    """

    id: str
    kind: str
    state: str
    progress: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    error: JobError | None = None
    waits_for: str | None = None
    created_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state not in ("queued", "running")


@dataclass(frozen=True)
class NamespaceRole:
    name: str
    role: str


@dataclass(frozen=True)
class WhoAmI:
    name: str
    is_admin: bool = False
    scope: str = "read"
    namespaces: tuple[NamespaceRole, ...] = ()


@dataclass(frozen=True)
class CommitResult:
    commit: str
    job_id: str | None = None
    changed: bool = True


@dataclass(frozen=True)
class PushResult:
    """The outcome of a push. sent: bytes of the bodies of uploads and recipes.

    state: `proved` when the hub has verified and stored everything, `committed` when the push
    did not wait for that. base: the declared base. base_state: `resolved` if the caller may read
    the base at the hub, `absent` if not, `no_safetensors` if the base has no file to take deltas
    against. Both are None without a declared base.
    """

    repository: str
    revision: str
    commit: str
    changed: bool
    state: str
    added: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    unchanged: int = 0
    size: int = 0
    sent: int = 0
    job_id: str | None = None
    url: str = ""
    base: str | None = None
    base_state: str | None = None


@dataclass(frozen=True)
class PullResult:
    """The outcome of a pull. received: bytes that the hub sent; reused: bytes it did not send.

    Reused bytes are those of files that were in place, of files and tensors copied from this
    machine, and those that a delta saved. replaced: the caller's own files that the pull
    overwrote with overwrite=True. left: files of an earlier pull that this revision lacks.
    """

    repository: str
    revision: str
    commit: str
    path: Path
    files: int
    size: int
    received: int
    reused: int
    fetched_files: tuple[str, ...] = field(default=())
    replaced: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def record(kind: type[_T], value: Any) -> _T:
    """A record of this kind from parsed JSON. BadResponse if a field is missing or malformed."""
    if not isinstance(value, dict):
        raise BadResponse(f"the hub sent {type(value).__name__} where {kind.__name__} belongs")
    known = {}
    for spec in dataclasses.fields(kind):  # type: ignore[arg-type]  # every kind is a dataclass
        if spec.name in value:
            known[spec.name] = _field(kind, spec.name, value[spec.name])
    try:
        return kind(**known)
    except TypeError as exc:
        raise BadResponse(f"the hub sent an incomplete {kind.__name__}: {exc}") from exc


_NESTED: dict[tuple[type[Any], str], type[Any]] = {
    (Revision, "base"): DeclaredBase,
    (Job, "error"): JobError,
}
_LISTS: dict[tuple[type[Any], str], type[Any]] = {
    (Revision, "entries"): Entry,
    (RecipePlan, "tensors"): PlannedTensor,
    (WhoAmI, "namespaces"): NamespaceRole,
}
_INTEGERS = frozenset({"size", "encoded_size", "depth", "models", "received"})
_TEXTS = frozenset({"path", "sha256", "etag", "commit", "id", "recipe", "state"})


def _field(kind: type[Any], name: str, value: Any) -> Any:
    if (kind, name) in _LISTS:
        if not isinstance(value, list):
            raise BadResponse(f"the hub sent no list as {name} of a {kind.__name__}")
        return tuple(record(_LISTS[kind, name], item) for item in value)
    if (kind, name) in _NESTED:
        nested = _NESTED[kind, name]
        if value is None:
            return nested() if nested is DeclaredBase else None
        return record(nested, value)
    if name == "bases":
        return tuple(str(item) for item in value)
    if name in _INTEGERS and (type(value) is not int or value < 0):
        raise BadResponse(f"the hub sent {value!r} as {name} of a {kind.__name__}")
    is_text = name in _TEXTS or (kind, name) == (Withdrawal, "job_id")
    if kind is not DeclaredBase and is_text and not isinstance(value, str):
        raise BadResponse(f"the hub sent {value!r} as {name} of a {kind.__name__}")
    return value

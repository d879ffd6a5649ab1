"""The hub's answers as typed values. Fields that a newer hub adds are ignored."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

# deltahub.client.api.parsing checks these limits. Hashes and ids become names of files.
Sha256 = Annotated[str, re.compile("[0-9a-f]{64}")]
TensorId = Annotated[str, re.compile("[0-9a-f]{64}")]
CommitId = Annotated[str, re.compile("[0-9a-f]{40}")]
ETag = Annotated[str, re.compile("[0-9a-f]{40}|[0-9a-f]{64}")]
JobId = Annotated[str, re.compile("[0-9A-Za-z_-]{1,64}")]
# Bytes of a file, or of all files of a repository.
Count = Annotated[int, range(1 << 60)]
Origin = Annotated[str, re.compile("https?://[!-~]{1,300}")]
LinkUrl = Annotated[str, re.compile("https?://[!-~]{1,8000}")]
Share = Annotated[float, (0.0, 2.0)]


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
    downloads: int = 0


@dataclass(frozen=True)
class Withdrawal:
    """A change of a repository that a job does. models: stored as differences from it until then.

    Models that the caller may not read do not count.
    """

    job_id: JobId
    models: Count = 0


@dataclass(frozen=True)
class Entry:
    """A file of a revision. etag: its git blob id (mode regular) or its SHA-256 (mode lfs)."""

    path: str
    size: Count
    sha256: Sha256
    etag: ETag
    mode: str = "lfs"
    state: str = "landed"
    git_blob_id: CommitId | None = None


@dataclass(frozen=True)
class DeclaredBase:
    """The base that a push declared, and its commit if the hub found one."""

    declared: str | None = None
    commit: CommitId | None = None


@dataclass(frozen=True)
class Revision:
    """An immutable commit. job_id: its ingest job, None when there was nothing to ingest."""

    commit: CommitId
    parent: CommitId | None = None
    message: str = ""
    author: str | None = None
    created_at: str | None = None
    base: DeclaredBase = DeclaredBase()
    job_id: JobId | None = None
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Ref:
    kind: str
    name: str
    commit: CommitId


@dataclass(frozen=True)
class LoggedCommit:
    """A commit of a branch's history. author: None if the user was deleted. Times are ISO 8601.

    ingest: state of the job that stores its files; None if there was nothing to store.
    """

    commit: CommitId
    title: str
    created_at: str
    message: str = ""
    author: str | None = None
    ingest: str | None = None


@dataclass(frozen=True)
class Rule:
    """What history of each branch is kept: its last commits, every k-th, and what is young.

    keep_every: k, counted from the branch's first commit; None for none. older_than_s: younger
    commits are kept, in seconds; None: age does not count. of: whose rule it is, in answers.
    """

    keep_last: Count = 1
    keep_every: Count | None = None
    older_than_s: Count | None = None
    of: str = ""


@dataclass(frozen=True)
class Pruned:
    """What was dropped. kept: revisions that stay. size_bytes: of files that no other one has, as
    they were pushed. stored_bytes: what the repository stores less; None from an older hub.
    """

    commits: tuple[CommitId, ...]
    kept: Count
    size_bytes: Count
    stored_bytes: Count | None = None


@dataclass(frozen=True)
class Dropped:
    """A revision that was dropped. by: None if a rule did it. until: it can be taken back before.

    reason: ref removed | squashed | file deleted | pruned. Times are ISO 8601.
    """

    commit: CommitId
    title: str
    reason: str
    dropped_at: str
    until: str
    by: str | None = None
    created_at: str | None = None


@dataclass(frozen=True)
class PlannedTensor:
    """How the hub keeps one tensor: encoded bytes, and the tensors that decoding needs.

    depth: the longest chain of deltas below it, 0 without a base.
    """

    id: TensorId
    size: Count
    encoded_size: Count
    depth: Count
    codec: str = "raw"
    bases: tuple[TensorId, ...] = ()


@dataclass(frozen=True)
class RecipePlan:
    """A file's tensors as the hub stores them. recipe: BLAKE3 of the recipe's bytes.

    link_origin: where links to frames lead, None if the hub gives none.
    """

    recipe: TensorId
    size: Count
    sha256: Sha256
    tensors: tuple[PlannedTensor, ...] = ()
    link_origin: Origin | None = None


@dataclass(frozen=True)
class LinkedFrame:
    """A frame behind a link. tensor: its place in the list that was asked. length: its bytes."""

    tensor: Count
    length: Count


@dataclass(frozen=True)
class FrameLink:
    """A URL for bytes [start, end) of an object: frames back to back."""

    url: LinkUrl
    start: Count
    end: Count
    frames: tuple[LinkedFrame, ...]


@dataclass(frozen=True)
class FrameLinks:
    """Links for the first n_tensors of the tensors that were asked."""

    n_tensors: Count
    links: tuple[FrameLink, ...]


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
class JobProgress:
    """What a job has done. stage: the part of its work. step: its number, from 1, of n_steps, of a
    job that counts its steps.
    """

    done_bytes: Count
    total_bytes: Count
    stage: str | None = None
    fraction: Share | None = None
    step: Count | None = None
    n_steps: Count | None = None

    def sentence(self, work: str) -> str:
        """`step 2 of 6, 34%: WORK`, as far as it is known. work: what the job does now."""
        told = []
        if self.step is not None and self.n_steps is not None:
            told.append(f"step {self.step} of {self.n_steps}")
        if self.fraction is not None:
            told.append(f"{self.fraction:.0%}")
        return ": ".join(filter(None, (", ".join(told), work)))


@dataclass(frozen=True)
class LogLine:
    """A line of a job's log. number: grows from line to line."""

    number: Count
    text: str
    at: str | None = None


@dataclass(frozen=True)
class Job:
    """Background work. state: queued, running, done, failed or cancelled.

    waits_for: what an unfinished job waits for; None while it runs, and from an older hub.
    arguments, priority: of a job that somebody asked for.
    """

    id: JobId
    kind: str
    state: str
    progress: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    error: JobError | None = None
    waits_for: str | None = None
    arguments: Mapping[str, Any] | None = None
    priority: str | None = None
    repository: str | None = None
    user: str | None = None
    created_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state not in ("queued", "running")


@dataclass(frozen=True)
class Amounts:
    """What a namespace uses, or may use: then None means without a limit.

    stored_bytes: in the object store. logical_bytes: of all files, as they were pushed.
    """

    repositories: Count | None = None
    stored_bytes: Count | None = None
    logical_bytes: Count | None = None


@dataclass(frozen=True)
class NamespaceRole:
    name: str
    role: str
    used: Amounts = Amounts()
    limits: Amounts = Amounts()


@dataclass(frozen=True)
class WhoAmI:
    name: str
    is_admin: bool = False
    scope: str = "read"
    namespaces: tuple[NamespaceRole, ...] = ()


@dataclass(frozen=True)
class Token:
    """A token without its secret."""

    id: int
    scope: str = "read"
    label: str = ""
    created_at: str | None = None
    expires_at: str | None = None


@dataclass(frozen=True)
class CommitResult:
    commit: CommitId
    job_id: JobId | None = None
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
    """The outcome of a pull. received: bytes that came; reused: bytes that did not have to.

    Reused bytes are those of files that were in place, of files and tensors copied from this
    machine, and those that a delta saved. replaced: the caller's own files that the pull
    overwrote with overwrite=True. left: files of an earlier pull that this revision lacks.
    linked: received bytes that came straight from the hub's object store. link_failures: links to
    it that failed, so that other links or the hub gave these bytes.
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
    linked: int = 0
    link_failures: int = 0

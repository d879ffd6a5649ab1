"""Repositories, their refs and revisions, and commits."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from deltahub.server.schemas.base import Commit, In, Out, Sha256


class RepositoryIn(In):
    name: str = Field(description="namespace/name")
    private: bool = False
    push_bytes: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="bytes of the files that are to be pushed to it, each once: refused if the "
        "quota has no room for them",
    )


class VisibilityIn(In):
    private: bool


class RepositoryOut(Out):
    name: str
    private: bool
    role: str = Field(
        description="the caller's role here, as whoami names it: read, write or admin"
    )
    created_at: datetime
    head: str | None = Field(
        description="commit of the branch `main`; null while the repository is empty"
    )
    downloads: int


class WithdrawalOut(Out):
    job_id: str = Field(description="the job that does the change; the owner may cancel it")
    models: int = Field(
        description="other models that are stored as differences from this one, and that the job "
        "stores without it first"
    )


class RepositoryPage(Out):
    items: list[RepositoryOut]
    next_cursor: str | None


class RefOut(Out):
    kind: str
    name: str
    commit: str


class RefList(Out):
    items: list[RefOut]


class BaseOut(Out):
    declared: str | None
    commit: str | None = Field(
        description="commit of the declared base; null if there is none that the caller may read"
    )


class EntryOut(Out):
    path: str
    size: int
    sha256: str
    git_blob_id: str | None
    etag: str
    mode: str
    state: str = Field(
        description="landed: stored as uploaded; ingested: verified and packed; lost: its stored "
        "bytes are gone or damaged, push the file again"
    )


class RevisionOut(Out):
    commit: str
    parent: str | None
    message: str
    author: str | None
    created_at: datetime
    base: BaseOut
    job_id: str | None = Field(description="its ingest job; null when there was nothing to ingest")
    entries: list[EntryOut]


class LoggedOut(Out):
    commit: str
    title: str = Field(description="the first line of the message")
    message: str
    author: str | None = Field(description="null: the user was deleted")
    created_at: datetime
    ingest: str | None = Field(
        description="state of the job that stores its files, as of other jobs; null when there was "
        "nothing to store"
    )


class CommitPage(Out):
    items: list[LoggedOut]
    next_cursor: str | None


class AddIn(In):
    op: Literal["add"]
    path: str
    sha256: Sha256
    size: Annotated[int, Field(ge=0)]


class DeleteIn(In):
    op: Literal["delete"]
    path: str


class StepIn(In):
    number: Annotated[int, Field(ge=0)]
    after: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="the newest step that the pusher knows, null for none: 409 if another one "
        "has come since",
    )


class StepOut(Out):
    number: int
    commit: str
    created_at: datetime


class StepPage(Out):
    items: list[StepOut]
    next_cursor: str | None


class CommitIn(In):
    ref: str = "main"
    message: str = ""
    parent: Commit | None = Field(
        default=None, description="the head that the branch must have; null: not checked"
    )
    base: str | None = Field(
        default=None,
        description="namespace/name[@revision], or `none` for no base; null: the base that a "
        "README.md among the operations names as its base_model, else the base that an "
        "adapter_config.json names, else the base that the parent declared",
    )
    step: StepIn | None = Field(
        default=None, description="make this step of a run, which `step-<number>` names then"
    )
    operations: list[Annotated[AddIn | DeleteIn, Field(discriminator="op")]]


class CommitOut(Out):
    commit: str
    job_id: str | None
    changed: bool = Field(description="false when the branch already had this content")

"""The tables of the registry (DESIGN section 3): names, files, tensors, packs, jobs."""

from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    literal_column,
)
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base as Base
from deltahub.registry.db.columns import Id, UtcDateTime, partial_index
from deltahub.registry.db.columns import utc_now as utc_now
from deltahub.registry.db.expressions import ascii_lower

PUBLIC_DOMAIN_KEY = "public"


class User(Base):
    """A user, who may hold tokens and has a namespace of the same name."""

    __tablename__ = "users"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(96), unique=True)
    is_admin: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    disabled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Token(Base):
    """An access token. The hub keeps only the SHA-256 of its secret."""

    __tablename__ = "tokens"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    scope: Mapped[str] = mapped_column(String(16))  # read | write | admin
    label: Mapped[str] = mapped_column(String(200), default="")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Namespace(Base):
    """The first half of a repository's name. It belongs to a user or to an organization."""

    __tablename__ = "namespaces"
    __table_args__ = (Index("ix_namespaces_lower_name", ascii_lower(literal_column("name"))),)
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(96), unique=True)
    kind: Mapped[str] = mapped_column(String(16))  # user | organization


class Membership(Base):
    """The role of a user in a namespace."""

    __tablename__ = "memberships"
    namespace_id: Mapped[int] = mapped_column(
        ForeignKey("namespaces.id", ondelete="CASCADE"), primary_key=True
    )
    user_id: Mapped[int] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    role: Mapped[str] = mapped_column(String(16))  # read | write | admin


class Domain(Base):
    """The boundary of shared storage: `public`, or a namespace's private data (`namespace:ID`)."""

    __tablename__ = "domains"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    key: Mapped[str] = mapped_column(String(64), unique=True)


class Repository(Base):
    __tablename__ = "repositories"
    __table_args__ = (
        UniqueConstraint("namespace_id", "name"),
        Index("ix_repositories_lower_name", "namespace_id", ascii_lower(literal_column("name"))),
        # Orders of lists, of all public repositories and of those of a namespace.
        Index("ix_repositories_created", "is_private", "id"),
        Index("ix_repositories_changed", "is_private", "head_id", "id"),
        Index("ix_repositories_downloads", "is_private", "downloads", "id"),
        Index("ix_repositories_size", "is_private", "logical_bytes", "id"),
        Index("ix_repositories_saved", "is_private", "saved_bytes", "id"),
        Index("ix_repositories_created_in", "namespace_id", "is_private", "id"),
        Index("ix_repositories_changed_in", "namespace_id", "is_private", "head_id", "id"),
        Index("ix_repositories_downloads_in", "namespace_id", "is_private", "downloads", "id"),
        Index("ix_repositories_size_in", "namespace_id", "is_private", "logical_bytes", "id"),
        Index("ix_repositories_saved_in", "namespace_id", "is_private", "saved_bytes", "id"),
    )
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id"))
    name: Mapped[str] = mapped_column(String(96))
    domain_id: Mapped[int] = mapped_column(ForeignKey("domains.id"))
    is_private: Mapped[bool] = mapped_column(default=False)
    role: Mapped[str | None] = mapped_column(String(16))  # base|finetune|adapter|merge|export
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    # The revision at the head of main, 0 without one. catalog/lists/model_tags.py keeps it.
    head_id: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    downloads: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    # Of its usage, for lists in this order; quotas/usage.py keeps them.
    logical_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    saved_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")


class OldName(Base):
    """A former name of a repository, which leads to it unless another one has the name now."""

    __tablename__ = "old_names"
    __table_args__ = (UniqueConstraint("namespace_id", "lower_name"),)
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"))
    lower_name: Mapped[str] = mapped_column(String(96))  # without its namespace, in lower case
    repository_id: Mapped[int] = mapped_column(
        ForeignKey("repositories.id", ondelete="CASCADE"), index=True
    )


class Revision(Base):
    """An immutable commit. `declared_base` is the text that the pusher sent, resolved or not."""

    __tablename__ = "revisions"
    __table_args__ = (
        UniqueConstraint("repository_id", "commit"),
        Index("ix_revisions_parent", "repository_id", "parent_commit"),
    )
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    commit: Mapped[str] = mapped_column(String(40))
    parent_commit: Mapped[str | None] = mapped_column(String(40))
    # Commits from the first of the branch to this one, with those that were dropped since.
    number: Mapped[int] = mapped_column(default=1, server_default="1")
    message: Mapped[str] = mapped_column(Text, default="")
    author_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    declared_base: Mapped[str | None] = mapped_column(String(300), index=True)  # name[@revision]
    declared_base_revision_id: Mapped[int | None] = mapped_column(
        ForeignKey("revisions.id", ondelete="SET NULL"), index=True
    )
    ingest_job_id: Mapped[str | None] = mapped_column(String(32))  # None: nothing to ingest
    # The top node of its tree (db/tables/trees.py); None: it has no files.
    tree_id: Mapped[int | None] = mapped_column(ForeignKey("tree_nodes.id"), index=True)


class Ref(Base):
    __tablename__ = "refs"
    repository_id: Mapped[int] = mapped_column(
        ForeignKey("repositories.id", ondelete="CASCADE"), primary_key=True
    )
    kind: Mapped[str] = mapped_column(String(8), primary_key=True)  # branch | tag
    name: Mapped[str] = mapped_column(String(250), primary_key=True)
    revision_id: Mapped[int] = mapped_column(
        ForeignKey("revisions.id", ondelete="CASCADE"), index=True
    )


class Landing(Base):
    """The bytes of one upload. In state complete, the SHA-256 of all bytes is verified."""

    __tablename__ = "landings"
    __table_args__ = (UniqueConstraint("user_id", "sha256"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # random hex, names the object
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    sha256: Mapped[str] = mapped_column(String(64))
    git_blob_id: Mapped[str | None] = mapped_column(String(40))
    size: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(String(16))  # receiving | complete
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # Until then a client may commit these bytes, because the hub told it not to send them.
    promised_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # XXH3-64 of each MiB, 8 bytes each (storage/checksums.py). 1 TiB has 8 MiB of them.
    checksums: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)


NOT_INGESTED: Final = "state <> 'ingested'"


class File(Base):
    """The bytes of an entry: a landing until they are ingested, then a recipe.

    state: `proving` (a client's recipe whose SHA-256 is not verified yet: neither committable nor
    readable), `landed` (read from its landing), `ingested` (rebuilt from its recipe), `lost` (its
    upload or a tensor that it needs is damaged: the next upload of its bytes restores it).
    """

    __tablename__ = "files"
    __table_args__ = (
        UniqueConstraint("domain_id", "sha256"),
        partial_index("ix_files_not_ingested", "id", NOT_INGESTED),
    )
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    domain_id: Mapped[int] = mapped_column(ForeignKey("domains.id"))
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    git_blob_id: Mapped[str | None] = mapped_column(String(40))
    size: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(String(16))
    landing_id: Mapped[str | None] = mapped_column(ForeignKey("landings.id"), index=True)
    recipe_tensor_id: Mapped[int | None] = mapped_column(ForeignKey("tensors.id"), index=True)
    kind: Mapped[str | None] = mapped_column(String(16))  # safetensors | opaque, once ingested
    note: Mapped[str | None] = mapped_column(Text)  # e.g. why it was not read as safetensors
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    ingested_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # Why the last revisions that listed it went, as the plan of gc says; None: it may be listed.
    left_by: Mapped[str | None] = mapped_column(String(20))


def is_not_ingested() -> ColumnElement[bool]:
    """SQL condition on File, as the partial index has it: with the value in the text."""
    return File.state != literal_column("'ingested'")


class FileTensor(Base):
    """A tensor that a file's recipe needs, or the file's recipe tensor: the reference graph."""

    __tablename__ = "file_tensors"
    file_id: Mapped[int] = mapped_column(
        ForeignKey("files.id", ondelete="CASCADE"), primary_key=True
    )
    tensor_id: Mapped[int] = mapped_column(ForeignKey("tensors.id"), primary_key=True, index=True)


class Tensor(Base):
    """Bytes named by their BLAKE3-256, stored once in a domain. Depth 0 is an anchor.

    Chunks of opaque files, large safetensors headers and recipes are tensors too.
    """

    __tablename__ = "tensors"
    __table_args__ = (
        UniqueConstraint("domain_id", "hash"),
        partial_index("ix_tensors_lost", "lost", "lost IS NOT NULL"),
    )
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    domain_id: Mapped[int] = mapped_column(ForeignKey("domains.id"))
    hash: Mapped[bytes] = mapped_column(LargeBinary(32), index=True)
    size: Mapped[int] = mapped_column(BigInteger)
    depth: Mapped[int] = mapped_column(default=0)
    # True if a client encoded the frames: they are used only inside the pusher's namespace.
    is_foreign: Mapped[bool] = mapped_column(default=False)
    # Why it cannot be read: `frames`, its own are gone or damaged; `base`, a base is lost.
    # Written by losses/marks.py alone. None: it can be read, as far as anybody knows.
    lost: Mapped[str | None] = mapped_column(String(8))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)


class Pack(Base):
    """An immutable object of frames. writing -> live -> condemned -> gone.

    A live pack becomes `damaged` when its object is found missing or changed. Its frames keep their
    rows: readers try them, and it becomes live again if the object comes back.
    """

    __tablename__ = "packs"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # random hex, names the object
    domain_id: Mapped[int] = mapped_column(ForeignKey("domains.id"))
    state: Mapped[str] = mapped_column(String(16), index=True)
    size: Mapped[int] = mapped_column(BigInteger, default=0)
    hash: Mapped[bytes | None] = mapped_column(LargeBinary(32))  # BLAKE3 of the whole object
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    condemned_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Frame(Base):
    """The location of a part of a tensor. A tensor's frames, by `start`, cover it without gaps."""

    __tablename__ = "frames"
    tensor_id: Mapped[int] = mapped_column(
        ForeignKey("tensors.id", ondelete="CASCADE"), primary_key=True
    )
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True)  # first byte of the tensor
    size: Mapped[int] = mapped_column(BigInteger)  # decoded bytes
    pack_id: Mapped[str] = mapped_column(ForeignKey("packs.id"), index=True)
    offset: Mapped[int] = mapped_column(BigInteger)  # in the pack
    length: Mapped[int] = mapped_column(BigInteger)  # bytes in the pack
    codec: Mapped[int] = mapped_column()
    # The encoder generation that last tried to make the frame smaller; 0: encoded by a client.
    tried: Mapped[int] = mapped_column(default=0, server_default="0")


class TensorBase(Base):
    """The tensors that a tensor's current frames need for decoding."""

    __tablename__ = "tensor_bases"
    tensor_id: Mapped[int] = mapped_column(
        ForeignKey("tensors.id", ondelete="CASCADE"), primary_key=True
    )
    base_id: Mapped[int] = mapped_column(ForeignKey("tensors.id"), primary_key=True, index=True)


class Hold(Base):
    """Keeps a tensor until a time, because a client was told that the hub has it."""

    __tablename__ = "holds"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    tensor_id: Mapped[int] = mapped_column(ForeignKey("tensors.id"), index=True)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    repository_id: Mapped[int | None] = mapped_column(
        ForeignKey("repositories.id", ondelete="CASCADE"), index=True
    )
    job_id: Mapped[str | None] = mapped_column(String(32), index=True)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class LineageEdge(Base):
    """The child was made from the parent, as the pusher declared or as the weights show."""

    __tablename__ = "lineage_edges"
    __table_args__ = (UniqueConstraint("child_id", "parent_id", "kind", "origin"),)
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    child_id: Mapped[int] = mapped_column(ForeignKey("revisions.id", ondelete="CASCADE"))
    parent_id: Mapped[int] = mapped_column(
        ForeignKey("revisions.id", ondelete="CASCADE"), index=True
    )
    kind: Mapped[str] = mapped_column(String(16))  # finetune | adapter | merge | export | upgrade
    origin: Mapped[str] = mapped_column(String(8))  # declared | measured
    # measured: share of the child's tensor bytes held as deltas of, or shared with, the parent
    share: Mapped[float | None] = mapped_column()


class Sketch(Base):
    """One band of a tensor's locality-sensitive sketch (DESIGN section 3, detection)."""

    __tablename__ = "sketches"
    __table_args__ = (Index("ix_sketches_lookup", "band", "value", "shape_class", "tensor_id"),)
    tensor_id: Mapped[int] = mapped_column(
        ForeignKey("tensors.id", ondelete="CASCADE"), primary_key=True
    )
    band: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)
    shape_class: Mapped[str] = mapped_column(String(64))
    positions: Mapped[bytes | None] = mapped_column(LargeBinary)  # full sketch, on band 0 only


class AuditEvent(Base):
    """The audit log, append-only: a user, an action and its target."""

    __tablename__ = "audit_events"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now, index=True)
    user_name: Mapped[str | None] = mapped_column(String(96))
    action: Mapped[str] = mapped_column(String(40))
    target: Mapped[str] = mapped_column(String(300))
    detail: Mapped[dict[str, Any] | None] = mapped_column(JSON)


class Xorb(Base):
    """Chunks that a Hugging Face client sent to a repository; repository_id None: deleted."""

    __tablename__ = "xorbs"
    __table_args__ = (Index("ix_xorbs_lookup", "repository_id", "hash"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # random hex, names the object
    repository_id: Mapped[int | None] = mapped_column(
        ForeignKey("repositories.id", ondelete="SET NULL")
    )
    # The sender, whose limit counts it; None: sent before the hub had this limit.
    user_id: Mapped[int | None] = mapped_column(
        ForeignKey("users.id", ondelete="SET NULL"), index=True
    )
    hash: Mapped[bytes] = mapped_column(LargeBinary(32))
    size: Mapped[int] = mapped_column(BigInteger)  # of the object
    chunks: Mapped[bytes] = mapped_column(LargeBinary)  # a XorbIndex
    state: Mapped[str] = mapped_column(String(16))  # writing | live | condemned
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


class XetRange(Base):
    """Chunks [first, end) of a xorb are the bytes of a file from `offset` on. Outlives the xorb."""

    __tablename__ = "xet_ranges"
    __table_args__ = (Index("ix_xet_ranges_lookup", "xorb", "first"),)
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    xorb: Mapped[bytes] = mapped_column(LargeBinary(32))
    first: Mapped[int] = mapped_column()
    end: Mapped[int] = mapped_column()
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    offset: Mapped[int] = mapped_column(BigInteger)
    chunks: Mapped[bytes] = mapped_column(LargeBinary)  # a XorbIndex
    head: Mapped[bytes | None] = mapped_column(LargeBinary(32), index=True)  # first chunk, at 0
    domain_id: Mapped[int | None] = mapped_column(Id)  # of the sender; None: unknown, row unused


class XetEpoch(Base):
    """The repository's epoch, added to the setting DELTAHUB_XET_EPOCH; 0 without a row."""

    __tablename__ = "xet_epochs"
    repository_id: Mapped[int] = mapped_column(
        ForeignKey("repositories.id", ondelete="CASCADE"), primary_key=True
    )
    epoch: Mapped[int] = mapped_column()

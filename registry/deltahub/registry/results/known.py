"""What the hub knows of a job's inputs before the job computes, to refuse what cannot end well.

A job that could only fail costs its user a wait, and the operator a line among the failed jobs. The
job checks again when it runs, because rights, heads and bases change meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sqlalchemy import select

from deltahub.codecs.exports.file import FILE_NAME as EXPORT
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed, full_name, require
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.adapters.files import CONFIG, WEIGHTS
from deltahub.registry.adapters.inspections import is_outdated
from deltahub.registry.adapters.reports import shown_report
from deltahub.registry.catalog.declared_base import NO_BASE, resolve_declared
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.catalog.weights import named_tensors
from deltahub.registry.db.models import File, Repository, Revision, Tensor
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import InvalidRequest, RefMoved
from deltahub.registry.registry import Registry

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""tensor -> (dtype, shape)"""

# A request looks at the tensors of a model with at most so many files, whose recipes have at most
# so many bytes together: about 10,000 tensors, which take less than half a second.
_MAX_FILES: Final = 1000
_MAX_RECIPE_BYTES: Final = 1 << 20


class Placed(Protocol):
    """A model, and where it may be read and stored."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def is_private(self) -> bool: ...
    @property
    def domain_id(self) -> int: ...
    @property
    def revision_id(self) -> int: ...


@dataclass(frozen=True)
class KnownModel:
    """One input. Its methods read the database; only `shapes` reads stored bytes.

    is_adapter: it has an adapter_config.json. is_export: its weights are compressed. report: on an
    adapter, without the name of a base that the caller may not read; None if there is none that was
    made with today's base at hand.
    """

    reg: Registry
    caller: Caller
    revision_id: int
    name: str
    commit: str
    is_private: bool
    domain_id: int
    is_adapter: bool
    is_export: bool
    report: Mapping[str, Any] | None

    @classmethod
    def load(
        cls, session: ReadSession, reg: Registry, caller: Caller, revision: Revision
    ) -> "KnownModel":
        """RepositoryNotFound if the caller may not read it."""
        repository = session.get_one(Repository, revision.repository_id)
        require(session, caller, "read", repository)
        found = entries_at(session, revision, [CONFIG, EXPORT])
        is_adapter = CONFIG in found
        report = None
        if is_adapter and not is_outdated(session, revision.id):
            report = shown_report(session, caller, revision.id)
        return cls(
            reg,
            caller,
            revision.id,
            full_name(session, repository),
            revision.commit,
            repository.is_private,
            repository.domain_id,
            is_adapter,
            EXPORT in found,
            report,
        )

    @property
    def title(self) -> str:
        return f"{self.name}@{self.commit[:8]}"

    def require_head(self) -> None:
        """The errors of require_head below."""
        with self.reg.db.read() as session:
            require_head(session, self.caller, self)

    def require_base(self) -> "KnownModel":
        """The base that it names. InvalidRequest if it names none, one that this hub lacks, or one
        that the caller may not read.
        """
        with self.reg.db.read() as session:
            revision = session.get_one(Revision, self.revision_id)
            row, declared = revision.declared_base_revision_id, revision.declared_base
            base = None if row is None else session.get(Revision, row)
            if base is None and declared not in (None, NO_BASE):
                base = resolve_declared(session, self.caller, declared)  # pushed a moment ago
            if base is None:
                raise InvalidRequest(why_no_base(self.title, declared))
            if not may_read(session, self.caller, base):
                raise InvalidRequest(why_unreadable_base(self.title))
            return self.load(session, self.reg, self.caller, base)

    def refuse_hidden_base(self, base: "KnownModel") -> None:
        """InvalidRequest if readers of this adapter would read a part of a base that is not
        theirs.
        """
        why = why_hidden(base, self)
        if why is not None:
            raise InvalidRequest(why)

    def has_initial_factors(self) -> bool:
        """Whether a folder with the factors that it started from lies beside the adapter."""
        query = select(Entry.path).where(
            Entry.revision_id == self.revision_id,
            Entry.path.endswith(f"_init/{WEIGHTS}", autoescape=True),
        )
        with self.reg.db.read() as session:
            return any(path.count("/") == 1 for path in session.scalars(query))

    def has_file(self, path: str) -> bool:
        """Whether it has a file of this path."""
        with self.reg.db.read() as session:
            revision = session.get_one(Revision, self.revision_id)
            return path in entries_at(session, revision, [path])

    def shapes(self) -> Shapes | None:
        """The tensors of its safetensors files; None if they wait for their ingest, or are many."""
        rows = select(Entry.file_id).where(
            Entry.revision_id == self.revision_id, Entry.path.endswith(".safetensors")
        )
        query = (
            select(File, Tensor.size)
            .outerjoin(Tensor, Tensor.id == File.recipe_tensor_id)
            .where(File.id.in_(rows))
            .order_by(File.id)
            .limit(_MAX_FILES + 1)
        )
        with self.reg.db.read() as session:
            found = [(file, size or 0) for file, size in session.execute(query)]
        if len(found) > _MAX_FILES or sum(size for _, size in found) > _MAX_RECIPE_BYTES:
            return None
        files = [file for file, _ in found]
        if any(file.state != "ingested" for file in files):
            return None
        reader = FileReader(self.reg)
        return {
            name: (ref.dtype, tuple(ref.shape))
            for file in files
            if file.kind == "safetensors"
            for name, ref in named_tensors(reader, file)
        }


Check = Callable[[Sequence[KnownModel]], None]
"""Raises what is wrong with a job's inputs, in their order, as far as it is known before it runs"""


def require_head(session: ReadSession, caller: Caller, adapter: Placed) -> None:
    """Forbidden unless the caller may write to the adapter's repository; RefMoved if the adapter is
    not at the head of its main.
    """
    repository = load_repository(session, caller, adapter.name, "write")
    if repository.head_id != adapter.revision_id:
        raise RefMoved(f"{adapter.title} is not the head of main any more: ask for the one that is")


def why_no_base(title: str, declared: str | None) -> str:
    """The sentence on a model without a base at hand. declared: what it names as its base."""
    told = "names no base"
    if declared not in (None, NO_BASE):
        told = f"names {declared} as its base, which this hub lacks"
    return f"{title} {told}: push the base, and name it by --base"


def may_read(session: ReadSession, caller: Caller, revision: Revision) -> bool:
    repository = session.get_one(Repository, revision.repository_id)
    return allowed(session, caller, "read", repository)


def why_unreadable_base(title: str) -> str:
    """The sentence on a model whose base its user may not read. It does not name that base."""
    return f"{title} names a base that you may not read: name another by --base"


def why_hidden(base: Placed, adapter: Placed) -> str | None:
    """Why no part of this base may be stored with this adapter; None if it may."""
    if base.is_private and not adapter.is_private:
        return (
            f"{base.title} is private, and the result would put a part of its weights into"
            f" {adapter.name}, which is public: make the adapter private first"
        )
    if base.is_private and base.domain_id != adapter.domain_id:
        return (
            f"{base.title} is private in another namespace, and its weights stay there: push the"
            " adapter to that namespace"
        )
    return None

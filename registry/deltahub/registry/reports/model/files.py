"""How files are stored, in a word each: for a page of a list, at a bounded cost."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import case, exists, func, select
from sqlalchemy.orm import aliased

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed, full_name, readable_repositories
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import (
    File,
    FileTensor,
    Frame,
    LineageEdge,
    Repository,
    Revision,
    Tensor,
    TensorBase,
)
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry, TreeEntry, TreeLink, TreeNode

# pending: as it was uploaded, until its ingest. lost: to be pushed again. shared: another model has
# the same file. delta: most of its bytes are differences from other tensors. whole: all others.
How = Literal["pending", "lost", "shared", "delta", "whole"]
# Tensors that one page looks at; files beyond that are shown without stored bytes.
MOST_TENSORS: Final = 50_000
# Bases of a file that are looked up, the largest first, to name the models that it derives from.
_LOOKED_UP: Final = 8
# Places of a file in other models that are looked at, for one that the viewer may read.
_MOST_PLACES: Final = 100
# From this share of its bytes a file is called a delta.
_DELTA_SHARE: Final = 0.5


@dataclass(frozen=True)
class StoredFile:
    """How a file is stored. stored: bytes of its frames; None: too many tensors to count here.

    delta_share: of its bytes, those of tensors that are stored as differences. bases: models from
    which, as far as the caller may read them; "" stands for earlier revisions of this one.
    """

    how: How
    stored: int | None
    delta_share: float = 0.0
    bases: tuple[str, ...] = ()


def stored_files(
    session: ReadSession, caller: Caller | None, revision: Revision, files: Iterable[File]
) -> dict[int, StoredFile]:
    """Row id of a file -> how it is stored. files: of the revision."""
    by_id = {file.id: file for file in files}
    found: dict[int, StoredFile] = {}
    counted = _within_budget(
        session, [each.id for each in by_id.values() if each.recipe_tensor_id is not None]
    )
    stored, deltas = _stored_bytes(session, counted), _delta_bytes(session, counted)
    shared = _shared(session, caller, revision, list(by_id))
    parents = _parents(session, caller, revision) if any(deltas.values()) else []
    for row_id, file in by_id.items():
        if file.state == "lost":
            found[row_id] = StoredFile("lost", None)
        elif file.recipe_tensor_id is None:
            found[row_id] = StoredFile("pending", file.size)
        else:
            share = deltas.get(row_id, 0) / file.size if file.size else 0.0
            how: How = "shared" if row_id in shared else "whole"
            bases: tuple[str, ...] = ()
            if share > 0:
                bases = _bases_of(session, row_id, parents)
            if how == "whole" and share >= _DELTA_SHARE:
                how = "delta"
            found[row_id] = StoredFile(how, stored.get(row_id), min(share, 1.0), bases)
    return found


def _within_budget(session: ReadSession, files: Sequence[int]) -> list[int]:
    if not files:
        return []
    query = select(FileTensor.file_id, func.count()).where(FileTensor.file_id.in_(files))
    counts = {file: n for file, n in session.execute(query.group_by(FileTensor.file_id))}
    taken: list[int] = []
    n_tensors = 0
    for file in files:
        n_tensors += counts.get(file, 0)
        if n_tensors <= MOST_TENSORS:
            taken.append(file)
    return taken


def _stored_bytes(session: ReadSession, files: Collection[int]) -> dict[int, int]:
    cancellation.check()
    query = (
        select(FileTensor.file_id, total(Frame.length))
        .join(Frame, Frame.tensor_id == FileTensor.tensor_id)
        .where(FileTensor.file_id.in_(files))
        .group_by(FileTensor.file_id)
    )
    return {file: n_bytes for file, n_bytes in session.execute(query)}


def _delta_bytes(session: ReadSession, files: Collection[int]) -> dict[int, int]:
    """Bytes of the tensors that have bases, without the tensor that holds the recipe."""
    cancellation.check()
    has_base = exists().where(TensorBase.tensor_id == Tensor.id)
    query = (
        select(FileTensor.file_id, total(case((has_base, Tensor.size), else_=0)))
        .join(Tensor, Tensor.id == FileTensor.tensor_id)
        .join(File, File.id == FileTensor.file_id)
        .where(FileTensor.file_id.in_(files), FileTensor.tensor_id != File.recipe_tensor_id)
        .group_by(FileTensor.file_id)
    )
    return {file: n_bytes for file, n_bytes in session.execute(query)}


def _shared(
    session: ReadSession, caller: Caller | None, revision: Revision, files: Collection[int]
) -> set[int]:
    """The files that a revision of another model, which the caller may read, lists too."""
    # A file may be in a million models: some of them are looked at, by the index of its entries.
    places = (
        select(TreeEntry.node_id)
        .join(TreeNode, TreeNode.id == TreeEntry.node_id)
        .where(TreeEntry.file_id == File.id, TreeNode.repository_id != revision.repository_id)
        .limit(_MOST_PLACES)
        .correlate(File)
        .subquery()
    )
    leaf, group = aliased(TreeLink), aliased(TreeLink)
    elsewhere = (
        select(places.c.node_id)
        .join(leaf, leaf.child_id == places.c.node_id)
        .join(group, group.child_id == leaf.parent_id)
        .join(Revision, Revision.tree_id == group.parent_id)
        .join(Repository, Repository.id == Revision.repository_id)
        .where(readable_repositories(caller))
        .offset(0)  # PostgreSQL looks each file up then, and reads no whole table
        .exists()
    )
    return set(session.scalars(select(File.id).where(File.id.in_(files), elsewhere)))


def _parents(
    session: ReadSession, caller: Caller | None, revision: Revision
) -> list[tuple[int, str]]:
    """(revision, name) of the models that this one may derive from; its own revisions last."""
    edges = select(LineageEdge.parent_id).where(LineageEdge.child_id == revision.id)
    ids = list(dict.fromkeys(session.scalars(edges.order_by(LineageEdge.share.desc()))))
    found: list[tuple[int, str]] = []
    for row_id in ids:
        parent = session.get_one(Revision, row_id)
        repository = session.get_one(Repository, parent.repository_id)
        if allowed(session, caller, "read", repository):
            found.append((row_id, full_name(session, repository)))
    earlier = (
        select(Revision.id)
        .where(Revision.repository_id == revision.repository_id, Revision.id < revision.id)
        .order_by(Revision.id.desc())
        .limit(3)
    )
    return found + [(row_id, "") for row_id in session.scalars(earlier)]


def _bases_of(
    session: ReadSession, file_id: int, parents: Sequence[tuple[int, str]]
) -> tuple[str, ...]:
    """Those of the parents that hold one of the largest bases of the file's tensors."""
    bases = list(
        session.scalars(
            select(TensorBase.base_id)
            .join(FileTensor, FileTensor.tensor_id == TensorBase.tensor_id)
            .join(Tensor, Tensor.id == TensorBase.base_id)
            .where(FileTensor.file_id == file_id)
            .order_by(Tensor.size.desc(), Tensor.id)
            .limit(_LOOKED_UP)
        )
    )
    found = [name for row_id, name in parents if _holds(session, row_id, bases)]
    return tuple(dict.fromkeys(found))


def _holds(session: ReadSession, revision_id: int, tensors: Collection[int]) -> bool:
    query = (
        select(FileTensor.tensor_id)
        .join(Entry, Entry.file_id == FileTensor.file_id)
        .where(Entry.revision_id == revision_id, FileTensor.tensor_id.in_(tensors))
    )
    return session.scalar(query.limit(1)) is not None

"""Which files need an object that is missing or damaged."""

from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import (
    File,
    FileTensor,
    Frame,
    Namespace,
    Repository,
    Revision,
    TensorBase,
)
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.names import quoted

# Files that a finding names; it counts all of them.
MAX_FILES: Final = 20


def affected_files(session: Session, kind: str, row_id: str) -> tuple[tuple[str, ...], int]:
    """(names of at most MAX_FILES files with their repository, number of all files).

    kind, row_id: of the object. A xorb's files are uploads by Xet that are not committed yet, so it
    has none here.
    """
    if kind == "landing":
        files = set(session.scalars(select(File.id).where(File.landing_id == row_id)))
    elif kind == "pack":
        files = _files_of(session, _with_deltas(session, row_id))
    else:
        files = set()
    names: list[str] = []
    for batch in batches(sorted(files)):
        names += _names(session, batch)
        if len(names) >= MAX_FILES:
            break
    return tuple(names[:MAX_FILES]), len(files)


def _with_deltas(session: Session, pack_id: str) -> set[int]:
    """The tensors with a frame in the pack, and all tensors that need one of them."""
    new = set(session.scalars(select(Frame.tensor_id).where(Frame.pack_id == pack_id).distinct()))
    found: set[int] = set()
    while new:
        found |= new
        deltas: set[int] = set()
        for batch in batches(new):
            deltas.update(
                session.scalars(select(TensorBase.tensor_id).where(TensorBase.base_id.in_(batch)))
            )
        new = deltas - found
    return found


def _files_of(session: Session, tensors: set[int]) -> set[int]:
    files: set[int] = set()
    for batch in batches(tensors):
        files.update(
            session.scalars(
                select(FileTensor.file_id).where(FileTensor.tensor_id.in_(batch)).distinct()
            )
        )
    return files


def _names(session: Session, files: list[int]) -> list[str]:
    rows = session.execute(
        select(Namespace.name + "/" + Repository.name, Entry.path, func.max(Revision.id))
        .join(Repository, Repository.namespace_id == Namespace.id)
        .join(Revision, Revision.repository_id == Repository.id)
        .join(Entry, Entry.revision_id == Revision.id)
        .where(Entry.file_id.in_(files))
        .group_by(Namespace.name, Repository.name, Entry.path)
        .order_by(Namespace.name, Repository.name, Entry.path)
    )
    return [f"{quoted(path)} of {name}" for name, path, _ in rows]

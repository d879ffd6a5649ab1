"""What a commit changed: files, and the tensors of its safetensors files."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from sqlalchemy import select

from deltahub.codecs.files.recipe import TensorRef
from deltahub.registry import cancellation
from deltahub.registry.catalog.entries import EntryInfo, entries_at
from deltahub.registry.catalog.trees.changes import changed_paths
from deltahub.registry.catalog.trees.read import Tree
from deltahub.registry.db.models import File, FileTensor, Revision, Tensor
from deltahub.registry.db.session import ReadSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.downloads.plan import TENSOR_COLUMNS, TensorRow, describe
from deltahub.registry.registry import Registry

Kind = Literal["added", "removed", "changed"]


@dataclass(frozen=True)
class FileChange:
    """A file that a commit changed. before, after: None where the revision has no such path."""

    path: str
    before: EntryInfo | None
    after: EntryInfo | None

    @property
    def kind(self) -> Kind:
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor that differs. dtype, shape, size: after the change, unless it was removed.

    codec, stored: of the tensor after the change, None if it was removed.
    """

    name: str
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    size: int
    codec: str | None
    stored: int | None


@dataclass(frozen=True)
class TensorChanges:
    """How the tensors of a file changed. same: tensors that did not."""

    changes: list[TensorChange]
    same: int

    def n(self, kind: Kind) -> int:
        """The number of tensors that were changed in this way."""
        return sum(each.kind == kind for each in self.changes)

    @property
    def stored(self) -> int:
        """Bytes that the changed and added tensors take."""
        return sum(each.stored or 0 for each in self.changes)


def parent_of(session: ReadSession, revision: Revision) -> Revision | None:
    """The parent; None for a first commit, and if the parent was dropped."""
    if revision.parent_commit is None:
        return None
    return session.scalar(
        select(Revision).where(
            Revision.repository_id == revision.repository_id,
            Revision.commit == revision.parent_commit,
        )
    )


def file_changes(
    session: ReadSession, revision: Revision, parent: Revision | None, after: str, limit: int
) -> tuple[list[FileChange], bool]:
    """(at most `limit` changed files in order of path, whether there are more)."""
    old = Tree(session, None if parent is None else parent.tree_id)
    found = list(islice(changed_paths(old, Tree(session, revision.tree_id), after), limit + 1))
    paths = [each.path for each in found[:limit]]
    before = {} if parent is None else entries_at(session, parent, paths)
    now = entries_at(session, revision, paths)
    changes = [FileChange(path, before.get(path), now.get(path)) for path in paths]
    return changes, len(found) > limit


def tensor_changes(
    reg: Registry, reader: FileReader, before: File | None, after: File | None
) -> TensorChanges | None:
    """How the named tensors of a file changed; None unless both sides are ingested."""
    for file in (before, after):
        if file is not None and (file.kind != "safetensors" or file.state != "ingested"):
            return None
    olds, news = _named(reader, before), _named(reader, after)
    differing = {name: ref for name, ref in news.items() if not _is_same(olds.get(name), ref)}
    stored = (
        {} if after is None else _stored(reg, after, {ref.tensor for ref in differing.values()})
    )
    changes: list[TensorChange] = []
    for name in dict.fromkeys((*olds, *differing)):
        ref = differing.get(name)
        if ref is not None:
            codec, n_bytes = stored.get(ref.tensor, (None, None))
            kind: Kind = "changed" if name in olds else "added"
            changes.append(TensorChange(name, kind, ref.dtype, ref.shape, ref.size, codec, n_bytes))
        elif name not in news:
            old = olds[name]
            changes.append(
                TensorChange(name, "removed", old.dtype, old.shape, old.size, None, None)
            )
    return TensorChanges(changes, len(news) - len(differing))


def _is_same(old: TensorRef | None, new: TensorRef) -> bool:
    return old is not None and (old.tensor, old.dtype, old.shape) == (
        new.tensor,
        new.dtype,
        new.shape,
    )


def _named(reader: FileReader, file: File | None) -> Mapping[str, TensorRef]:
    if file is None:
        return {}
    cancellation.check()
    return {ref.name: ref for ref in reader.load_recipe(file).tensors() if ref.name is not None}


def _stored(reg: Registry, file: File, wanted: set[bytes]) -> dict[bytes, tuple[str, int]]:
    """Content id -> (codec, encoded bytes), of those tensors of a file."""
    with reg.db.read() as session:
        rows = session.execute(
            select(*TENSOR_COLUMNS)
            .join(FileTensor, FileTensor.tensor_id == Tensor.id)
            .where(FileTensor.file_id == file.id)
        )
        found = [row for row in map(TensorRow._make, rows) if row.hash in wanted]
        planned = describe(session, found)
    return {each.id: (each.codec, each.encoded_size) for each in planned.values()}

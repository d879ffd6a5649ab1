"""The tensors of a revision: how each is stored, who shares it, and what it needs for decoding."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sqlalchemy import exists, select

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import readable_repositories
from deltahub.registry.catalog.weights import weight_tensors
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import FileTensor, Repository, Revision, Tensor
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry, TreeEntry, TreeNode
from deltahub.registry.downloads.plan import TENSOR_COLUMNS, PlannedTensor, TensorRow, describe
from deltahub.registry.packs.locations import closure, locate


@dataclass
class StoredBytes:
    """Encoded bytes. base: of tensors outside the revision that decoding needs.

    own, shared: of the revision's tensors that no other, or another, repository has. Repositories
    that the viewer may not read do not count.
    """

    own: int = 0
    shared: int = 0
    base: int = 0


class StoredRevision:
    """The tensors of a revision: how each is stored, whether it is shared, and its bases."""

    def __init__(
        self,
        session: ReadSession,
        caller: Caller | None,
        repository: Repository,
        revision: Revision,
    ) -> None:
        self._repository_id = repository.id
        self.tensors_by_file: dict[int, list[int]] = {}
        for file_id, tensor_id in session.execute(
            select(FileTensor.file_id, FileTensor.tensor_id)
            .join(Entry, Entry.file_id == FileTensor.file_id)
            .where(Entry.revision_id == revision.id)
            .distinct()
        ):
            self.tensors_by_file.setdefault(file_id, []).append(tensor_id)
        self._weights = weights_of(session, revision)
        own = {tensor for tensors in self.tensors_by_file.values() for tensor in tensors}
        rows: list[TensorRow] = []
        for batch in batches(own):
            cancellation.check()
            found = session.execute(select(*TENSOR_COLUMNS).where(Tensor.id.in_(batch)))
            rows += map(TensorRow._make, found)
        self.described: dict[int, PlannedTensor] = describe(session, rows)
        self.shared = _shared(session, caller, repository, own)
        self._graph = closure(session, own)
        self._base_sizes = {
            tensor_id: sum(frame.length for frame in tensor.frames)
            for tensor_id, tensor in locate(session, self._graph.keys() - own).items()
        }

    def uses_any(self, tensors: Collection[int]) -> bool:
        """Whether the revision holds one of the tensors or needs one for decoding."""
        return not self._graph.keys().isdisjoint(tensors)

    def has_bases_in_its_history(self, session: ReadSession) -> bool:
        """Whether other revisions of the repository, also pruned ones, have what decoding needs."""
        is_here = TreeNode.repository_id == self._repository_id
        query = (
            select(FileTensor.tensor_id)
            .join(TreeEntry, TreeEntry.file_id == FileTensor.file_id)
            .join(TreeNode, TreeNode.id == TreeEntry.node_id)
        )
        return any(
            session.scalar(query.where(FileTensor.tensor_id.in_(batch), is_here).limit(1))
            for batch in batches(self._base_sizes)
        )

    def derived_share(self, tensors: Collection[int]) -> float:
        """Share of the weight bytes that are among the tensors or decoded from them."""
        of_weights = {tensor: self.described[tensor].size for tensor in self._weights}
        total = sum(of_weights.values())
        made = sum(
            size for tensor, size in of_weights.items() if self._derives_from(tensor, tensors)
        )
        return made / total if total else 0.0

    def identical_share(self, tensors: Collection[int]) -> float:
        """Share of the weight bytes that are among the tensors."""
        sizes = {tensor: self.described[tensor].size for tensor in self._weights}
        total = sum(sizes.values())
        return sum(sizes[tensor] for tensor in self._weights & set(tensors)) / (total or 1)

    def _derives_from(self, tensor: int, tensors: Collection[int]) -> bool:
        seen, level = {tensor}, {tensor}
        while level:
            level = {base for one in level for base in self._graph.get(one, ())} - seen
            seen |= level
        return not seen.isdisjoint(tensors)

    def total(self, tensors: Iterable[int]) -> StoredBytes:
        """The bytes of some of the revision's tensors, each once."""
        stored = StoredBytes()
        seen: set[int] = set()
        waiting = list(dict.fromkeys(tensors))
        for tensor in waiting:
            size = self.described[tensor].encoded_size
            if tensor in self.shared:
                stored.shared += size
            else:
                stored.own += size
        while waiting:
            bases = self._graph.get(waiting.pop(), set()) - seen
            seen |= bases
            waiting += bases
        stored.base = sum(self._base_sizes.get(base, 0) for base in seen)
        return stored


def _shared(
    session: ReadSession,
    caller: Caller | None,
    repository: Repository,
    tensors: Collection[int],
) -> set[int]:
    """The tensors that another repository, which the viewer may read, has too."""
    elsewhere = exists(
        select(FileTensor.tensor_id)
        .join(Entry, Entry.file_id == FileTensor.file_id)
        .join(Revision, Revision.id == Entry.revision_id)
        .join(Repository, Repository.id == Revision.repository_id)
        .where(
            FileTensor.tensor_id == Tensor.id,
            Repository.id != repository.id,
            readable_repositories(caller),
        )
    )
    found: set[int] = set()
    for batch in batches(tensors):
        found.update(session.scalars(select(Tensor.id).where(Tensor.id.in_(batch), elsewhere)))
    return found


def weights_of(session: ReadSession, revision: Revision) -> set[int]:
    return set(session.scalars(weight_tensors(revision.id)))

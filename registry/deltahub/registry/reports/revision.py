"""The report of a revision: codec and bytes of each tensor, shared bytes, bytes of its bases."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from sqlalchemy import exists, func, select

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed, full_name, readable_repositories
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.catalog.declared_base import find_declared
from deltahub.registry.catalog.entries import EntryInfo, list_entries
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.catalog.weights import has_weights, weight_tensors
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import FileTensor, LineageEdge, Repository, Revision, Tensor
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.downloads.plan import TENSOR_COLUMNS, PlannedTensor, TensorRow, describe
from deltahub.registry.errors import LimitExceeded
from deltahub.registry.jobs import queue
from deltahub.registry.packs.locations import closure, locate
from deltahub.registry.registry import Registry


@dataclass
class StoredBytes:
    """Encoded bytes. base: of tensors outside the revision that decoding needs.

    own, shared: of the revision's tensors that no other, or another, repository has. Repositories
    that the viewer may not read do not count.
    """

    own: int = 0
    shared: int = 0
    base: int = 0


@dataclass(frozen=True, slots=True)
class TensorReport:
    """A tensor of a file. name: None for a chunk of other bytes. base_depth: its depth."""

    name: str | None
    dtype: str
    shape: tuple[int, ...]
    size: int
    codec: str
    stored: int
    base_depth: int
    shared: bool


@dataclass
class FileReport:
    """A file. tensors and kind are empty until its ingest. note: why a file is stored as opaque."""

    path: str
    size: int
    sha256: str
    state: str
    kind: str | None
    note: str | None
    stored: StoredBytes
    tensors: list[TensorReport] = field(default_factory=list)


@dataclass(frozen=True)
class MeasuredBase:
    """A measured base. share: of the bytes of the revision's weights, the share that are tensors of
    the base or decoded from them. identical: the share that are tensors of the base.
    """

    repository: str
    commit: str
    share: float | None
    identical: float = 0.0


@dataclass(frozen=True)
class BaseReport:
    """The bases of a revision. declared: the declared base, by its current name.

    declared_status: `resolved`; `absent` if the model is unknown or the viewer may not read it;
    `no_safetensors` if the model is empty or has weights in opaque files only; `unused` if no
    weights of the revision are shared with the base or encoded against it, for example because of
    another architecture. declared_share: the same share as of a measured base; None if the base is
    not resolved or the revision is not ingested. pending_job_id: the ingest or re-planning that may
    still change this report; until it ends, no base is called unused.
    """

    declared: str | None
    declared_status: str | None
    commit: str | None
    measured: tuple[MeasuredBase, ...]
    declared_share: float | None = None
    pending_job_id: str | None = None


@dataclass(frozen=True)
class RevisionReport:
    """A whole revision. totals: each tensor counts once. size: a file counts once for each path."""

    commit: str
    size: int
    files: tuple[FileReport, ...]
    totals: StoredBytes
    base: BaseReport


def report_revision(
    reg: Registry,
    reader: FileReader,
    caller: Caller | None,
    name: str,
    revision: str = DEFAULT_BRANCH,
) -> RevisionReport:
    """How a revision is stored, as far as the caller may read.

    Raises RepositoryNotFound, RevisionNotFound and LimitExceeded.
    """
    with reg.db.read() as session:
        repository = load_repository(session, caller, name)
        row = resolve_revision(session, repository, revision)
        _check_size(reg, session, row)
        entries = list_entries(session, row)
        stored = _StoredRevision(session, caller, repository, row)
        is_ingested = all(entry.file.recipe_tensor_id is not None for entry in entries)
        base = _report_base(session, caller, row, stored if is_ingested else None)
    files = [_report_file(reader, stored, entry) for entry in entries]
    totals = stored.total(stored.described)
    for entry in entries:
        if entry.file.recipe_tensor_id is None:
            totals.own += entry.file.size
    return RevisionReport(row.commit, sum(file.size for file in files), tuple(files), totals, base)


def _check_size(reg: Registry, session: ReadSession, revision: Revision) -> None:
    """LimitExceeded if the report would take too much memory."""
    limit = reg.settings.max_report_tensors
    rows = select(func.count()).select_from(Entry).where(Entry.revision_id == revision.id)
    n_rows = session.scalars(rows.outerjoin(FileTensor, FileTensor.file_id == Entry.file_id)).one()
    if n_rows > limit:
        raise LimitExceeded(
            f"a report lists at most {limit} tensors, and {revision.commit} has {n_rows}: read the"
            " recipes of its files, or raise DELTAHUB_MAX_REPORT_TENSORS"
        )


class _StoredRevision:
    """The tensors of a revision: how each is stored, whether it is shared, and its bases."""

    def __init__(
        self,
        session: ReadSession,
        caller: Caller | None,
        repository: Repository,
        revision: Revision,
    ) -> None:
        self.tensors_by_file: dict[int, list[int]] = {}
        for file_id, tensor_id in session.execute(
            select(FileTensor.file_id, FileTensor.tensor_id)
            .join(Entry, Entry.file_id == FileTensor.file_id)
            .where(Entry.revision_id == revision.id)
            .distinct()
        ):
            self.tensors_by_file.setdefault(file_id, []).append(tensor_id)
        self._weights = _weights(session, revision)
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


def _report_file(reader: FileReader, stored: _StoredRevision, entry: EntryInfo) -> FileReport:
    cancellation.check()
    file = entry.file
    report = FileReport(
        entry.path, file.size, file.sha256, file.state, file.kind, file.note, StoredBytes()
    )
    if file.recipe_tensor_id is None:
        report.stored.own = file.size  # as it was uploaded
        return report
    report.stored = stored.total(
        tensor for tensor in stored.tensors_by_file.get(file.id, ()) if tensor in stored.described
    )
    if file.state == "lost":
        return report  # its recipe may be unreadable
    recipe = reader.load_recipe(file)
    # Only rows of this file: another domain may store a tensor with the same contents.
    rows = {
        stored.described[row].id: row
        for row in stored.tensors_by_file.get(file.id, ())
        if row in stored.described
    }
    for ref in recipe.tensors():
        planned = stored.described.get(rows.get(ref.tensor, -1))
        if planned is not None:
            report.tensors.append(
                TensorReport(
                    name=ref.name,
                    dtype=ref.dtype,
                    shape=ref.shape,
                    size=ref.size,
                    codec=planned.codec,
                    stored=planned.encoded_size,
                    base_depth=planned.depth,
                    shared=rows[ref.tensor] in stored.shared,
                )
            )
    return report


def _report_base(
    session: ReadSession, caller: Caller | None, revision: Revision, stored: _StoredRevision | None
) -> BaseReport:
    """stored: None while not all of the revision is ingested."""
    status, commit, share = None, None, None
    pending = _pending_job(session, revision)
    declared = find_declared(session, caller, revision)
    if declared is not None:
        status = "absent"
        if declared.revision is not None:
            status, commit = "no_safetensors", declared.revision.commit
        if declared.revision is not None and has_weights(session, declared.revision.id):
            status = "resolved"
            if stored is not None:
                weights = _weights(session, declared.revision)
                share = stored.derived_share(weights)
                if pending is None and not stored.uses_any(weights):
                    status = "unused"
    edges = session.scalars(
        select(LineageEdge).where(
            LineageEdge.child_id == revision.id, LineageEdge.origin == "measured"
        )
    )
    measured = []
    for edge in sorted(edges, key=lambda edge: -(edge.share or 0.0)):
        parent = session.get_one(Revision, edge.parent_id)
        repository = session.get_one(Repository, parent.repository_id)
        if allowed(session, caller, "read", repository):
            name = full_name(session, repository)
            copied = 0.0 if stored is None else stored.identical_share(_weights(session, parent))
            measured.append(MeasuredBase(name, parent.commit, edge.share, copied))
    text = None if declared is None else declared.text
    return BaseReport(text, status, commit, tuple(measured), share, pending)


def _pending_job(session: ReadSession, revision: Revision) -> str | None:
    """The oldest active ingest or re-planning job of the revision, None if there is none."""
    return session.scalar(
        select(Job.id)
        .where(
            Job.state.in_(queue.ACTIVE),
            Job.kind.in_(("ingest", "replan")),
            Job.payload["revision_id"].as_integer() == revision.id,
        )
        .order_by(Job.created_at, Job.id)
        .limit(1)
    )


def _weights(session: ReadSession, revision: Revision) -> set[int]:
    return set(session.scalars(weight_tensors(revision.id)))

"""The report of a revision: codec and bytes of each tensor, shared bytes, bytes of its bases."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sqlalchemy import func, select

from deltahub.codecs.files.recipe import Recipe
from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.cards.pointers import pointers_among, sentence_on
from deltahub.registry.catalog.entries import EntryInfo, list_entries
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.db.models import File, FileTensor, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import LimitExceeded
from deltahub.registry.registry import Registry
from deltahub.registry.reports.bases import BaseReport, report_base
from deltahub.registry.reports.stored import StoredBytes, StoredRevision


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
    *,
    is_brief: bool = False,
) -> RevisionReport:
    """How a revision is stored, as far as the caller may read. is_brief: without tensors.

    Raises RepositoryNotFound, RevisionNotFound and LimitExceeded.
    """
    with reg.db.read() as session:
        repository = load_repository(session, caller, name)
        row = resolve_revision(session, repository, revision)
        _check_size(reg, session, row)
        entries = list_entries(session, row)
        stored = StoredRevision(session, caller, repository, row)
        is_ingested = all(entry.file.recipe_tensor_id is not None for entry in entries)
        base = report_base(session, caller, row, stored if is_ingested else None)
    files = [_report_file(stored, entry) for entry in entries]
    pointed = pointers_among(reader, entries)
    for file_report in files:
        if file_report.path in pointed:
            file_report.note = sentence_on({file_report.path: pointed[file_report.path]})
    if not is_brief:
        _add_tensors(reader, stored, entries, files)
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


def _report_file(stored: StoredRevision, entry: EntryInfo) -> FileReport:
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
    return report


def _add_tensors(
    reader: FileReader,
    stored: StoredRevision,
    entries: Iterable[EntryInfo],
    reports: Iterable[FileReport],
) -> None:
    pairs = [
        (entry.file, report)
        for entry, report in zip(entries, reports, strict=True)
        # The recipe of a lost file may be unreadable.
        if entry.file.recipe_tensor_id is not None and entry.file.state != "lost"
    ]
    recipes = reader.load_recipes([file for file, _ in pairs])
    for (file, report), recipe in zip(pairs, recipes, strict=True):
        cancellation.check()
        report.tensors += _tensors(stored, file, recipe)


def _tensors(stored: StoredRevision, file: File, recipe: Recipe) -> Iterator[TensorReport]:
    # Only rows of this file: another domain may store a tensor with the same contents.
    rows = {
        stored.described[row].id: row
        for row in stored.tensors_by_file.get(file.id, ())
        if row in stored.described
    }
    for ref in recipe.tensors():
        planned = stored.described.get(rows.get(ref.tensor, -1))
        if planned is not None:
            yield TensorReport(
                name=ref.name,
                dtype=ref.dtype,
                shape=ref.shape,
                size=ref.size,
                codec=planned.codec,
                stored=planned.encoded_size,
                base_depth=planned.depth,
                shared=rows[ref.tensor] in stored.shared,
            )

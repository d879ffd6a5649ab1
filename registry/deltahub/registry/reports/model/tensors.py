"""Every named tensor of a revision, and how it is stored: one flat list, kept for a moment."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import func, select

from deltahub.registry import cancellation
from deltahub.registry.db.models import File, FileTensor, Revision, Tensor
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.downloads.plan import TENSOR_COLUMNS, TensorRow, describe
from deltahub.registry.errors import LimitExceeded
from deltahub.registry.packs.block_cache import ByteCache
from deltahub.registry.registry import Registry


@dataclass(frozen=True, slots=True)
class TensorLine:
    """A tensor of a safetensors file. size: as it was pushed; stored: bytes of its frames.

    depth: bases that are decoded before it, one after another.
    """

    file: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    codec: str
    stored: int
    depth: int

    @property
    def ratio(self) -> float:
        """Stored bytes for each byte of the tensor."""
        return self.stored / self.size if self.size else 0.0


@dataclass(frozen=True)
class TensorTable:
    """The tensors of a revision in order of file and place. n_waiting: files not yet ingested."""

    lines: Sequence[TensorLine]
    n_waiting: int


# How long a table is kept: frames may be written again, and a person sorts and pages meanwhile.
_KEPT_S: Final = 60.0
_LINE_BYTES: Final = 400
_CACHE: Final[ByteCache[tuple[int, str, datetime], tuple[float, TensorTable]]] = ByteCache(48 << 20)


def tensor_table(reg: Registry, reader: FileReader, revision: Revision) -> TensorTable:
    """The tensors of a revision that the caller may read. LimitExceeded, as for a report.

    What it says is the same for every caller.
    """
    key = revision.id, revision.commit, revision.created_at
    known = _CACHE.get(key)
    if known is not None and known[0] > time.monotonic():
        return known[1]
    with reg.db.read() as session:
        files = _files(session, revision)
        _check_size(reg, session, revision, [file for _, file in files])
        waiting = select(func.count()).select_from(Entry).join(File, File.id == Entry.file_id)
        n_waiting = session.scalar(
            waiting.where(
                Entry.revision_id == revision.id,
                File.state != "ingested",
                Entry.path.endswith(".safetensors", autoescape=True),
            )
        )
    recipes = reader.load_recipes([file for _, file in files])
    lines: list[TensorLine] = []
    for (path, file), recipe in zip(files, recipes, strict=True):
        cancellation.check()
        with reg.db.read() as session:
            rows = session.execute(
                select(*TENSOR_COLUMNS)
                .join(FileTensor, FileTensor.tensor_id == Tensor.id)
                .where(FileTensor.file_id == file.id)
            )
            stored = describe(session, map(TensorRow._make, rows))
        by_hash = {each.id: each for each in stored.values()}
        for ref in recipe.tensors():
            planned = by_hash.get(ref.tensor)
            if ref.name is not None and planned is not None:
                lines.append(
                    TensorLine(
                        path, ref.name, ref.dtype, ref.shape, ref.size, planned.codec,
                        planned.encoded_size, planned.depth,
                    )
                )  # fmt: skip
    table = TensorTable(lines, n_waiting or 0)
    if not table.n_waiting:
        n_bytes = sum(_LINE_BYTES + len(each.name) + len(each.file) for each in lines)
        _CACHE.put(key, (time.monotonic() + _KEPT_S, table), n_bytes)
    return table


def _files(session: ReadSession, revision: Revision) -> list[tuple[str, File]]:
    query = select(Entry.path, File).join(File, File.id == Entry.file_id)
    rows = session.execute(
        query.where(
            Entry.revision_id == revision.id, File.kind == "safetensors", File.state == "ingested"
        ).order_by(Entry.path)
    )
    return [(path, file) for path, file in rows]


def _check_size(
    reg: Registry, session: ReadSession, revision: Revision, files: Sequence[File]
) -> None:
    """LimitExceeded if the list would take too much memory."""
    limit = reg.settings.max_report_tensors
    counts = select(func.count()).select_from(FileTensor)
    n_rows = 0
    for file in files:
        n_rows += session.scalar(counts.where(FileTensor.file_id == file.id)) or 0
        if n_rows > limit:
            raise LimitExceeded(
                f"a list shows at most {limit} tensors, and {revision.commit} has more: read the"
                " headers of its files, or raise DELTAHUB_MAX_REPORT_TENSORS"
            )

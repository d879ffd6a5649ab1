"""An adapter that the hub has stored, as the methods that look at adapters want it."""

from typing import Any, Final

import numpy as np
from sqlalchemy import select

from deltahub.codecs._native import count_infinite, widen_words
from deltahub.codecs.dtypes import DType
from deltahub.codecs.files.recipe import TensorRef
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.adapters.inspection.config import MAX_CONFIG_BYTES, parse_adapter_config
from deltahub.methods.adapters.inspection.report import AdapterReport, BaseAtHand, inspect_adapter
from deltahub.methods.adapters.inspection.shapes import TensorShape
from deltahub.methods.adapters.inspection.values import (
    MAX_FACTOR,
    MAX_VALUES,
    is_disguised,
    with_disguise,
    with_odd_values,
)
from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.errors import MethodError
from deltahub.registry.access.permissions import full_name
from deltahub.registry.catalog.weights import digest_of
from deltahub.registry.db.models import File, Repository, Revision
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.packs.locations import resolve
from deltahub.registry.registry import Registry

# Paths that are looked at for folders of initial factors.
_MAX_PATHS: Final = 10_000
# Elements that are doubles at once.
_BLOCK: Final = 1 << 20


class StoredAdapter:
    """An adapter in the hub, and its base."""

    def __init__(self, reg: Registry, reader: FileReader, revision: Revision, title: str) -> None:
        self._reg = reg
        self._reader = reader
        self._title = title
        with reg.db.read() as session:
            query = (
                select(Entry.path, File)
                .join(File, File.id == Entry.file_id)
                .where(Entry.revision_id == revision.id)
                .order_by(Entry.path)
            )
            named = query.where(Entry.path.in_((CONFIG_FILE, WEIGHTS_FILE)))
            self._files = {path: file for path, file in session.execute(query.limit(_MAX_PATHS))}
            self._files |= {path: file for path, file in session.execute(named)}
            self._base = (
                None
                if revision.declared_base_revision_id is None
                else session.get(Revision, revision.declared_base_revision_id)
            )
            repository = (
                None if self._base is None else session.get(Repository, self._base.repository_id)
            )
            own = session.get_one(Repository, revision.repository_id)
            if repository is not None and repository.is_private:
                # Readers of the adapter may not be readers of the base.
                if repository.namespace_id != own.namespace_id or not own.is_private:
                    repository = self._base = None
            self._domain_id = own.domain_id
            self._base_name = "" if repository is None else full_name(session, repository)
            self._base_domain = None if repository is None else repository.domain_id
        self._refs = self._refs_of({WEIGHTS_FILE: self._files.get(WEIGHTS_FILE)})
        self._base_refs = {} if self._base is None else self._refs_of(self._weights(self._base.id))

    @classmethod
    def of(cls, reg: Registry, reader: FileReader, revision_id: int) -> "StoredAdapter | None":
        with reg.db.read() as session:
            revision = session.get(Revision, revision_id)
            if revision is None:
                return None
            query = select(Entry.path).where(
                Entry.revision_id == revision_id, Entry.path == CONFIG_FILE
            )
            if session.scalar(query) is None:
                return None
            name = full_name(session, session.get_one(Repository, revision.repository_id))
        return cls(reg, reader, revision, f"{name}@{revision.commit[:8]}")

    def report(self) -> AdapterReport:
        config = self._files[CONFIG_FILE]
        if config.size > MAX_CONFIG_BYTES:
            fault = f"{CONFIG_FILE} has {config.size} bytes; at most {MAX_CONFIG_BYTES} are read"
            return _unreadable(self._title, fault)
        pieces = self._reader.stream_pieces(config, 0, config.size)
        data = b"".join(bytes(each) for each in pieces)
        base = None
        if self._base is not None and self._base_refs:
            shapes = _shapes(self._base_refs)
            differs = self._was_another(data, self._base)
            base = BaseAtHand(self._base_name, shapes, self._base.commit, differs)
        try:
            report = inspect_adapter(
                data, _shapes(self._refs), list(self._files), base, self._title
            )
        except MethodError as error:
            return _unreadable(self._title, str(error))
        odd = self._not_finite()
        if odd is not None:
            report = with_odd_values(report, odd)
        if report.state == "plain" and self._is_disguised():
            report = with_disguise(report)
        return report

    @property
    def base_digest(self) -> str | None:
        """Names the base's weights, whatever its other files are; None without a base."""
        return digest_of(self._base_refs) if self._base_refs else None

    def _was_another(self, config: bytes, base: Revision) -> bool:
        """Whether the configuration names another commit of the base, with other weights."""
        try:
            pinned = parse_adapter_config(config, self._title).revision
        except MethodError:
            return False  # the report says so
        if pinned is None or pinned == base.commit:
            return False
        with self._reg.db.read() as session:
            query = select(Revision).where(
                Revision.repository_id == base.repository_id, Revision.commit == pinned
            )
            other = session.scalar(query)
        if other is None:
            return False
        refs = self._refs_of(self._weights(other.id))
        return bool(refs) and digest_of(refs) != self.base_digest

    def _weights(self, revision_id: int) -> dict[str, File | None]:
        """The safetensors files of a base, by path."""
        with self._reg.db.read() as session:
            query = (
                select(Entry.path, File)
                .join(File, File.id == Entry.file_id)
                .where(Entry.revision_id == revision_id, File.kind == "safetensors")
                .order_by(Entry.path)
                .limit(_MAX_PATHS)
            )
            return {path: file for path, file in session.execute(query)}

    def _refs_of(self, files: dict[str, File | None]) -> dict[str, TensorRef]:
        return {
            ref.name: ref
            for file in files.values()
            if file is not None and file.kind == "safetensors" and file.recipe_tensor_id is not None
            for ref in self._reader.load_recipe(file).tensors()
            if ref.name is not None
        }

    def _not_finite(self) -> str | None:
        """The name of a tensor with values that are no numbers; None if all are, or it is large."""
        if sum(ref.size for ref in self._refs.values()) > MAX_VALUES:
            return None
        for name, ref in self._refs.items():
            is_float = ref.dtype in DType.__members__ and DType[ref.dtype].is_float
            if is_float and ref.size <= MAX_FACTOR:
                words = self._words(ref, self._domain_id)
                if words is not None and count_infinite(WORD_KINDS[DType[ref.dtype]], words):
                    return name
        return None

    def _is_disguised(self) -> bool:
        return is_disguised(
            (_shapes(self._refs), lambda name: self._values(self._refs[name], self._domain_id)),
            (
                _shapes(self._base_refs),
                lambda name: self._values(self._base_refs[name], self._base_domain),
            ),
        )

    def _values(self, ref: TensorRef, domain_id: int | None) -> Any:
        words = self._words(ref, domain_id)
        if words is None:
            return None
        dtype = DType[ref.dtype]
        out = np.empty(ref.size // dtype.itemsize, np.float32)
        for first in range(0, len(out), _BLOCK):
            part = words[first * dtype.itemsize : (first + _BLOCK) * dtype.itemsize]
            wide = np.empty(len(part) // dtype.itemsize, np.float64)
            widen_words(WORD_KINDS[dtype], part, wide)
            out[first : first + _BLOCK] = wide
        return out.reshape(ref.shape)

    def _words(self, ref: TensorRef, domain_id: int | None) -> memoryview | None:
        if domain_id is None:
            return None
        with self._reg.db.read() as session:
            row = resolve(session, domain_id, [ref.tensor]).get(ref.tensor)
        if row is None:
            return None
        words = memoryview(bytearray(ref.size))
        self._reader.read_tensor_into(row.id, 0, words)
        return words


def _unreadable(title: str, fault: str) -> AdapterReport:
    """The report on an adapter whose configuration says nothing."""
    return AdapterReport(
        title=title, peft_type="", init="", rule="unknown", ranks=[], scales=[], base=None,
        n_modules=0, extras={}, initial_factors=None, faults=[fault], notes=[], state="broken",
        why="", way_out="mend the faults, and push it again", verdicts=[],
    )  # fmt: skip


def _shapes(refs: dict[str, TensorRef]) -> dict[str, TensorShape]:
    return {name: TensorShape(ref.dtype, ref.shape) for name, ref in refs.items()}

"""Looks at an adapter when it was stored: writes a report, and converts it if that is automatic.

Small adapters are also compared with their base's weights, because the configuration of some says
that they are plain LoRA, and they are not.
"""

import logging
from hashlib import sha256
from typing import Any, Final

import numpy as np
from sqlalchemy import select

from deltahub.codecs._native import count_infinite, widen_words
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CodecError
from deltahub.codecs.files.recipe import TensorRef
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.adapters.factors import Factors
from deltahub.methods.adapters.initial.disguised import LIKELY, principal_cosine
from deltahub.methods.adapters.inspection.config import MAX_CONFIG_BYTES, parse_adapter_config
from deltahub.methods.adapters.inspection.engines import Answer
from deltahub.methods.adapters.inspection.report import AdapterReport, BaseAtHand, inspect_adapter
from deltahub.methods.adapters.inspection.shapes import TensorShape
from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE, Change, changes_of
from deltahub.methods.errors import MethodError
from deltahub.methods.kinds.convert_adapter import ConvertAdapterArguments
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import full_name
from deltahub.registry.adapters.reports import write_report
from deltahub.registry.adapters.rules import AUTO, conversion_key, rule_for
from deltahub.registry.db.models import File, Repository, Revision, User
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Cancelled, RegistryError
from deltahub.registry.jobs.owners import JobLost
from deltahub.registry.packs.locations import resolve
from deltahub.registry.registry import Registry
from deltahub.registry.results.asked import Wish, ask

log = logging.getLogger(__name__)

# Paths that are looked at for folders of initial factors.
_MAX_PATHS: Final = 10_000
# Bytes of a tensor that is looked at, of an adapter and of its base. With copies in other types it
# takes some times as much of the worker's memory.
_MAX_FACTOR: Final = 64 << 20
_MAX_WEIGHT: Final = 32 << 20
# Of all tensors of an adapter whose values are looked at.
_MAX_VALUES: Final = 1 << 30
# Elements that are doubles at once.
_BLOCK: Final = 1 << 20
# Modules that are compared with the base's weights.
_COMPARED: Final = 4
_FLOATS: Final = ("F32", "F16", "BF16")


def inspect_stored(reg: Registry, reader: FileReader, revision_id: int) -> None:
    """Write the report on a revision's adapter; nothing for a revision without one.

    What fails here fails no ingest: the report is missing then, and the log says why.
    """
    try:
        found = _Stored.of(reg, reader, revision_id)
        if found is None:
            return
        report = found.report()
        told = {**report.model_dump(mode="json"), "base_digest": found.base_digest}
        write_report(reg, revision_id, report.state, told)
        if report.state == "convertible":
            _convert_if_automatic(reg, revision_id)
    except (Cancelled, JobLost):
        raise
    except (RegistryError, CodecError, MethodError) as error:
        log.warning("revision=%d: no report on its adapter: %s", revision_id, error)
    except Exception:  # an odd adapter must not keep its own files from being stored
        log.exception("revision=%d: no report on its adapter", revision_id)


def _convert_if_automatic(reg: Registry, revision_id: int) -> None:
    """Ask for the conversion in the name of whoever has pushed the adapter."""
    with reg.db.read() as session:
        revision = session.get(Revision, revision_id)
        repository = None if revision is None else session.get(Repository, revision.repository_id)
        if revision is None or repository is None or rule_for(session, repository) != AUTO:
            return
        user = None if revision.author_id is None else session.get(User, revision.author_id)
        if user is None or repository.head_id != revision_id:
            return
        caller = Caller(user.id, user.name, user.is_admin, "write")
        adapter = f"{full_name(session, repository)}@{revision.commit}"
    arguments = ConvertAdapterArguments(adapter=adapter)
    wish = Wish(arguments.kind, arguments.model_dump(mode="json"), None, arguments.inputs())
    ask(reg, caller, wish, idempotency_key=conversion_key(adapter))


class _Stored:
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
    def of(cls, reg: Registry, reader: FileReader, revision_id: int) -> "_Stored | None":
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
            fault = f"{odd} has infinite or NaN elements: push the weights of a training that ended"
            faults = [*report.faults, f"{fault} well"]
            report = report.model_copy(update={"faults": faults, "state": "broken"})
        if report.state == "plain" and self._is_disguised():
            report = report.model_copy(update={
                "state": "quarantined",
                "why": "its update holds the first singular directions of the base's weights, as"
                " that of a PiSSA adapter does, though init_lora_weights says"
                f" {report.init!r}: on the base itself it would add these directions twice",
                "way_out": "say pissa in init_lora_weights of adapter_config.json, and push it"
                " again; or push its initial factors in a folder pissa_init/ beside it, and convert"
                " it; if it is a plain LoRA after all, `deltahub adapter rule NAME off`",
                "verdicts": [
                    each.model_copy(update={
                        "verdict": Answer.DOES_NOT.value,
                        "reasons": ["it holds a part of the base, which its configuration hides"],
                    })
                    for each in report.verdicts
                ],
            })  # fmt: skip
        return report

    @property
    def base_digest(self) -> str | None:
        """Names the base's weights, whatever its other files are; None without a base."""
        return _digest_of(self._base_refs) if self._base_refs else None

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
        return bool(refs) and _digest_of(refs) != self.base_digest

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
        if sum(ref.size for ref in self._refs.values()) > _MAX_VALUES:
            return None
        for name, ref in self._refs.items():
            is_float = ref.dtype in DType.__members__ and DType[ref.dtype].is_float
            if is_float and ref.size <= _MAX_FACTOR:
                words = self._words(ref, self._domain_id)
                if words is not None and count_infinite(WORD_KINDS[DType[ref.dtype]], words):
                    return name
        return None

    def _is_disguised(self) -> bool:
        """Whether the smallest matrices hold the base's principal part."""
        try:
            changes = changes_of(self._refs.keys(), self._base_refs.keys(), self._title)
        except MethodError:
            return False
        cosines: list[float] = []
        # The smallest tell as much as any, and fit into the memory of a worker that stores pushes.
        for name, change in sorted(changes.items(), key=lambda item: self._base_refs[item[0]].size):
            cosine = None if change.is_embedding else self._principal_cosine(name, change)
            if cosine is not None:
                cosines.append(cosine)
            if len(cosines) == _COMPARED:
                break
        return bool(cosines) and sum(cosines) / len(cosines) > LIKELY

    def _principal_cosine(self, name: str, change: Change) -> float | None:
        """Between a module's update and its weight's principal part; None if it is not compared."""
        base = self._base_refs[name]
        if change.down is None or change.up is None or base.size > _MAX_WEIGHT:
            return None
        refs = [base, self._refs[change.down], self._refs[change.up]]
        if any(ref.dtype not in _FLOATS or len(ref.shape) != 2 for ref in refs):
            return None
        domains = (self._base_domain, self._domain_id, self._domain_id)
        found = [self._values(ref, domain) for ref, domain in zip(refs, domains, strict=True)]
        if any(each is None for each in found):
            return None
        weight, down, up = found
        update = Factors(down.astype(np.float64), up.astype(np.float64))
        if update.shape == weight.shape[::-1] != weight.shape:
            weight = np.ascontiguousarray(weight.T)  # transposed, as of GPT-2
        return principal_cosine(weight, update) if update.shape == weight.shape else None

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


def _digest_of(refs: dict[str, TensorRef]) -> str:
    """SHA-256 over the names and content ids of all tensors."""
    digest = sha256()
    for name, ref in sorted(refs.items()):
        digest.update(name.encode() + b"\0" + ref.tensor)
    return digest.hexdigest()

"""Facts about a model that its files state: card, configuration, number of parameters."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from deltahub.codecs.errors import CodecError, InvalidSafetensors
from deltahub.codecs.exports.file import FILE_NAME
from deltahub.registry import cancellation
from deltahub.registry.cards.card import (
    ADAPTER,
    CARD,
    MAX_CARD_BYTES,
    base_in_adapter,
    base_in_card,
    base_tags,
    bases_in_card,
    card_tags,
    model_name,
    relation_in_card,
)
from deltahub.registry.cards.front_matter import BadCard, front_matter
from deltahub.registry.cards.headers import header_facts, header_size
from deltahub.registry.cards.plain_values import plain, read_json
from deltahub.registry.cards.spent import OPENED_BYTES, Spent
from deltahub.registry.cards.tasks import task_of
from deltahub.registry.catalog.declared_base import DeclaredBase
from deltahub.registry.catalog.entries import EntryInfo, entries_at
from deltahub.registry.catalog.lists.model_tags import MEASURED
from deltahub.registry.catalog.model_files import ModelFiles, find_model_files
from deltahub.registry.db.models import Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Cancelled, RegistryError

log = logging.getLogger(__name__)

# Headers of one model whose parameters are counted, in bytes together.
MAX_COUNTED_BYTES: Final = 32 << 20
_MAX_JSON_BYTES: Final = 1 << 20
# Files that tell the library if the card does not name one; the first that exists decides.
_CONFIGS: Final = (
    (ADAPTER, "peft"),
    ("config_sentence_transformers.json", "sentence-transformers"),
    ("model_index.json", "diffusers"),
    ("config.json", "transformers"),
)
_NAMED: Final = (CARD, *(path for path, _ in _CONFIGS))
_Parse: TypeAlias = Callable[[bytes], Any]
_CONFIG_KEYS: Final = ("architectures", "model_type", "auto_map", "quantization_config")


@dataclass(frozen=True)
class RevisionFiles:
    """The files of a revision that say something about its model.

    named: path -> entry of the card and the configurations. weights: their entries.
    """

    commit: str
    paths: ModelFiles
    named: Mapping[str, EntryInfo]
    weights: Sequence[EntryInfo]


@dataclass(frozen=True)
class Facts:
    """The facts of one revision, the same for every caller.

    tags: without those of bases. bases: as the card names them. relation: to its bases.
    adapter_base: the base that the adapter's configuration names. parameters: dtype -> number of
    elements, None if unknown. card, config: None if they were not loaded.
    """

    n_files: int
    size_bytes: int
    library: str | None
    pipeline: str | None
    tags: Sequence[str]
    bases: Sequence[str]
    relation: str
    adapter_base: str | None
    parameters: Mapping[str, int] | None
    card: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None


NO_FACTS: Final = Facts(0, 0, None, None, (), (), "finetune", None, None, {}, {})


def find_files(session: ReadSession, revision: Revision, spent: Spent) -> RevisionFiles:
    """Find the files that read_facts reads, without loading the other entries."""
    paths = find_model_files(session, revision)
    spent.n_entries += len(paths.weights)
    found = entries_at(session, revision, (*_NAMED, *paths.weights))
    named = {path: found[path] for path in _NAMED if path in found}
    weights = [found[path] for path in paths.weights if path in found]
    return RevisionFiles(revision.commit, paths, named, weights)


def read_facts(
    reader: FileReader,
    files: RevisionFiles,
    spent: Spent,
    max_counted_bytes: int = MAX_COUNTED_BYTES,
) -> tuple[Facts, bool]:
    """Read the facts of a revision from its files.

    Returns (facts, whether every file could be read). A file that cannot be read adds nothing, and
    nor does one that its reader refuses for ever, such as a broken card.
    """
    reading = _Reading(reader, spent)
    card = reading.read(files.named.get(CARD), MAX_CARD_BYTES, front_matter)
    whole_config = reading.read(files.named.get("config.json"), _MAX_JSON_BYTES, read_json)
    config = {key: value for key, value in whole_config.items() if key in _CONFIG_KEYS}
    adapter = reading.read(files.named.get(ADAPTER), _MAX_JSON_BYTES, read_json)
    library = _text(card.get("library_name")) or next(
        (name for path, name in _CONFIGS if path in files.named), None
    )
    pipeline = _text(card.get("pipeline_tag")) or task_of(whole_config)
    model_type = _text(config.get("model_type"))
    tags = [library, *files.paths.formats, model_type, pipeline, *card_tags(card)]
    of_files = "adapter" if ADAPTER in files.named else None
    if of_files is None and "gguf" in files.paths.formats:
        of_files = "quantized"
    elif of_files is None and FILE_NAME in files.paths.weights:
        of_files = "export"  # one that loses something says in its card that it is quantized
    facts = Facts(
        n_files=files.paths.n_entries,
        size_bytes=files.paths.n_bytes,
        library=library,
        pipeline=pipeline,
        tags=list(dict.fromkeys(tag for tag in tags if tag is not None)),
        bases=bases_in_card(card) if base_in_card(card) is not None else [],
        relation=relation_in_card(card, of_files),
        adapter_base=base_in_adapter(adapter),
        parameters=reading.count(files, max_counted_bytes) or None,
        card=card,
        config=config,
    )
    return facts, reading.is_whole


def shown_tags(
    facts: Facts, base: DeclaredBase | None, measured: Sequence[str]
) -> tuple[list[str], Mapping[str, Any]]:
    """The tags and the card of a model as a caller sees them; the card is {} if it is not loaded.

    base: the declared base, a model of this hub. If the card names no base but the adapter's
    configuration names this one, the card is shown as if it named it. Tags use the base's name of
    today, and contain it even if only the push declared it.
    measured: names of the models that the weights were found to derive from, added as tags.
    """
    card = facts.card or {}
    bases, relation = list(facts.bases), facts.relation
    if bases and base is not None and model_name(bases[0]) == base.declared_name:
        bases = [base.name if model_name(one) == base.declared_name else one for one in bases]
    elif not bases and base is not None:
        bases = [base.name]
        if facts.adapter_base == base.declared_name:
            relation = "adapter"
            if facts.card is not None:
                card = {**card, "base_model": base.name, "base_model_relation": relation}
    tags = [
        *facts.tags,
        *base_tags(bases, relation),
        *(f"base_model:{MEASURED}:{name}" for name in measured),
    ]
    return list(dict.fromkeys(tags)), card


def read_small(reader: FileReader, entry: EntryInfo, max_bytes: int) -> bytes | None:
    """Return the bytes of a file; None if it has more than `max_bytes` bytes."""
    if entry.file.size > max_bytes:
        return None
    return b"".join(reader.stream_file(entry.file, 0, entry.file.size))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


class _Reading:
    """One reading of a revision's files. is_whole: no file failed that may be read another time."""

    def __init__(self, reader: FileReader, spent: Spent) -> None:
        self._reader = reader
        self._spent = spent
        self.is_whole = True

    def read(self, entry: EntryInfo | None, max_bytes: int, parse: _Parse) -> dict[str, Any]:
        """The parsed contents of a file as plain values; {} and a log line without any."""
        if entry is None:
            return {}
        cancellation.check()
        self._spent.n_bytes += OPENED_BYTES + min(entry.size, max_bytes)
        try:
            data = read_small(self._reader, entry, max_bytes)
        except (RegistryError, CodecError) as error:
            self.is_whole = False
            _log_unreadable(entry, error)
            return {}
        if data is None:
            return {}
        try:
            found = plain(parse(data))
        except (BadCard, CodecError, ValueError) as error:
            _log_unreadable(entry, error)
            return {}
        except Exception as error:  # one model's file must not break a list of many models
            log.exception("file=%s sha256=%s broke its parser", entry.path, entry.file.sha256)
            _log_unreadable(entry, error)
            return {}
        return found if isinstance(found, dict) else {}

    def count(self, files: RevisionFiles, max_bytes: int) -> dict[str, int]:
        """Number of elements by dtype; {} without weights, or if their headers are too large."""
        totals: dict[str, int] = {}
        n_bytes = 0
        for entry in files.weights:
            cancellation.check()
            self._spent.n_bytes += OPENED_BYTES
            try:
                n_bytes += header_size(self._reader, entry)
                if n_bytes > max_bytes:
                    log.warning("commit=%s: its headers are too large to count", files.commit)
                    return {}
                counts = header_facts(self._reader, entry, self._spent).counts
            except (RegistryError, CodecError) as error:
                # A file that is no safetensors file stays none; every other reason may pass.
                self.is_whole = self.is_whole and isinstance(error, InvalidSafetensors)
                _log_unreadable(entry, error)
            else:
                for dtype, count in counts.items():
                    totals[dtype] = totals.get(dtype, 0) + count
        return totals


def _log_unreadable(entry: EntryInfo, error: Exception) -> None:
    if isinstance(error, Cancelled):
        raise error
    reason = str(error)[:300]
    log.warning("file=%s sha256=%s says nothing: %r", entry.path, entry.file.sha256, reason)

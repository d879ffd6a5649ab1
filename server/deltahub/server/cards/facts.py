"""Facts about a model that its files state: card, configuration, number of parameters."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from deltahub.codecs.errors import CodecError, InvalidSafetensors
from deltahub.registry import ReadSession, Revision, cancellation
from deltahub.registry.catalog.declared_base import DeclaredBase
from deltahub.registry.catalog.entries import EntryInfo, entries_at
from deltahub.registry.catalog.model_files import ModelFiles, find_model_files
from deltahub.registry.errors import Cancelled, RegistryError
from deltahub.registry.packs.block_cache import ByteCache
from deltahub.server.cards.card import (
    ADAPTER,
    CARD,
    MAX_CARD_BYTES,
    MEASURED,
    base_in_adapter,
    base_in_card,
    card_tags,
)
from deltahub.server.cards.front_matter import BadCard, front_matter
from deltahub.server.cards.headers import header_facts, header_size
from deltahub.server.cards.plain_values import plain, read_json
from deltahub.server.cards.spent import OPENED_BYTES, Spent
from deltahub.server.hub import Hub

log = logging.getLogger(__name__)

_MAX_JSON_BYTES: Final = 1 << 20
# Values as Python objects take about this many bytes for each byte of their JSON.
_OBJECT_BYTES: Final = 8
# (kind, SHA-256 of the file) -> parsed contents. Entries never become stale, because the key
# names the contents. Limit: 32 MiB of memory.
_CACHE: Final[ByteCache[tuple[str, str], dict[str, Any]]] = ByteCache(32 << 20)
# A revision never changes, so what its paths say and what its weights count is kept: 4 MiB each.
_Key: TypeAlias = tuple[int, str]  # (id of the repository, commit)
_PATHS: Final[ByteCache[_Key, ModelFiles]] = ByteCache(4 << 20)
_TOTALS: Final[ByteCache[_Key, Mapping[str, int]]] = ByteCache(4 << 20)
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

    named: path -> entry of the card and the configurations. weights: their entries, empty if their
    parameters are known already.
    """

    key: _Key
    paths: ModelFiles
    named: Mapping[str, EntryInfo]
    weights: Sequence[EntryInfo]


@dataclass(frozen=True)
class Facts:
    """The facts of one revision. parameters: dtype -> number of elements, None if unknown."""

    card: Mapping[str, Any]
    config: Mapping[str, Any]
    library: str | None
    pipeline: str | None
    tags: list[str]
    parameters: Mapping[str, int] | None


NO_FILES: Final = RevisionFiles((0, ""), ModelFiles(0, False, False, ()), {}, ())


def find_files(session: ReadSession, revision: Revision, spent: Spent) -> RevisionFiles:
    """Find the files that read_facts reads, without loading the other entries."""
    key = (revision.repository_id, revision.commit)
    paths = _PATHS.get(key)
    if paths is None:
        paths = find_model_files(session, revision)
        spent.n_entries += paths.n_entries
        _PATHS.put(key, paths, 400 + sum(map(len, paths.weights)))
    wanted = paths.weights if _TOTALS.get(key) is None else ()
    spent.n_entries += len(wanted)
    found = entries_at(session, revision, (*_NAMED, *wanted))
    named = {path: found[path] for path in _NAMED if path in found}
    return RevisionFiles(key, paths, named, [found[path] for path in wanted if path in found])


def read_facts(
    hub: Hub,
    files: RevisionFiles,
    spent: Spent,
    base: DeclaredBase | None = None,
    measured: Sequence[str] = (),
) -> Facts:
    """Read the facts of a revision from its files. A file that cannot be read adds nothing.

    base: the declared base, a model of this hub. If the card names no base but the adapter's
    configuration names this one, the card is shown as if it named it. Tags use the base's name of
    today, and contain it even if only the push declared it.
    measured: names of the models that the weights were found to derive from, added as tags.
    """
    named = files.named
    card = _read(hub, named.get(CARD), "card", spent)
    if base is not None and base_in_card(card) is None:
        adapter = _read(hub, named.get(ADAPTER), "json", spent)
        if base_in_adapter(adapter) == base.declared_name:
            card = card | {"base_model": base.name, "base_model_relation": "adapter"}
    library = card.get("library_name")
    found = next((name for path, name in _CONFIGS if path in named), None)
    library = library if isinstance(library, str) else found
    config = {
        key: value
        for key, value in _read(hub, named.get("config.json"), "json", spent).items()
        if key in _CONFIG_KEYS
    }
    pipeline = card.get("pipeline_tag")
    pipeline = pipeline if isinstance(pipeline, str) else None
    tags = [library] if library else []
    if files.paths.has_safetensors:
        tags.append("safetensors")
    model_type = config.get("model_type")
    tags += [model_type] if isinstance(model_type, str) else []
    tags += [pipeline] if pipeline else []
    renamed = (
        {}
        if base is None or base_in_card(card) != base.declared_name
        else {base.declared_name: base.name}
    )
    tagged_card = card
    if base is not None and base_in_card(card) is None:
        tagged_card = card | {"base_model": base.name}
    relation = "quantized" if files.paths.has_gguf else None
    tags += [
        *card_tags(tagged_card, renamed, "adapter" if ADAPTER in named else relation),
        *(f"base_model:{MEASURED}:{it}" for it in measured),
    ]
    tags = list(dict.fromkeys(tags))
    return Facts(card, config, library, pipeline, tags, _parameters(hub, files, spent))


def read_small(hub: Hub, entry: EntryInfo, max_bytes: int) -> bytes | None:
    """Return the bytes of a file; None if it has more than `max_bytes` bytes."""
    if entry.file.size > max_bytes:
        return None
    return b"".join(hub.reader.stream_file(entry.file, 0, entry.file.size))


def _parameters(hub: Hub, files: RevisionFiles, spent: Spent) -> Mapping[str, int] | None:
    """Number of elements by dtype; None without weights, or if their headers are too large."""
    known = _TOTALS.get(files.key)
    if known is not None:
        return known or None
    totals: dict[str, int] = {}
    n_bytes, is_whole = 0, True
    for entry in files.weights:
        cancellation.check()
        spent.n_bytes += OPENED_BYTES
        try:
            n_bytes += header_size(hub, entry)
            if n_bytes > hub.settings.max_headers_bytes:
                log.warning("commit=%s: its headers are too large to count", files.key[1])
                totals = {}
                break
            facts = header_facts(hub, entry, spent)
        except (RegistryError, CodecError) as error:
            _unreadable(entry, error)
            # Other errors than of the file itself may be over when it is read again.
            is_whole = is_whole and isinstance(error, InvalidSafetensors)
        else:
            for dtype, count in facts.counts.items():
                totals[dtype] = totals.get(dtype, 0) + count
    if is_whole and files.key != NO_FILES.key:
        _TOTALS.put(files.key, totals, 400)
    return totals or None


def _read(hub: Hub, entry: EntryInfo | None, kind: str, spent: Spent) -> dict[str, Any]:
    """The parsed contents of a file as plain values; {} and a log line if it cannot be read."""
    if entry is None:
        return {}
    key = (kind, entry.file.sha256)
    known = _CACHE.get(key)
    if known is not None:
        return known
    max_bytes, parse = _READERS[kind]
    cancellation.check()
    spent.n_bytes += OPENED_BYTES + min(entry.size, max_bytes)
    try:
        data = read_small(hub, entry, max_bytes)
    except (RegistryError, CodecError) as error:
        return _unreadable(entry, error)  # not cached: a later read may succeed
    known = {} if data is None else _parsed(parse, entry, data)
    # Failures are cached too: otherwise each list of models would parse the broken file again.
    _CACHE.put(key, known, 256 + _OBJECT_BYTES * len(json.dumps(known)))
    return known


def _parsed(parse: _Parse, entry: EntryInfo, data: bytes) -> dict[str, Any]:
    try:
        found = plain(parse(data))
    except (BadCard, CodecError, ValueError) as error:
        return _unreadable(entry, error)
    except Exception as error:  # one model's file must not break a list of many models
        log.exception("file=%s sha256=%s broke its parser", entry.path, entry.file.sha256)
        return _unreadable(entry, error)
    return found if isinstance(found, dict) else {}


def _unreadable(entry: EntryInfo, error: Exception) -> dict[str, Any]:
    if isinstance(error, Cancelled):
        raise error
    reason = str(error)[:300]
    log.warning("file=%s sha256=%s says nothing: %r", entry.path, entry.file.sha256, reason)
    return {}


# Kind -> (largest file that is read, how its bytes are parsed).
_READERS: Final[Mapping[str, tuple[int, _Parse]]] = {
    "card": (MAX_CARD_BYTES, front_matter),
    "json": (_MAX_JSON_BYTES, read_json),
}

"""Facts about a model that its files state: card, configuration, number of parameters."""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final, TypeAlias

from deltahub.codecs.errors import CodecError, InvalidSafetensors
from deltahub.codecs.files.safetensors import LENGTH_BYTES, header_length, parse_header
from deltahub.registry.catalog.declared_base import DeclaredBase
from deltahub.registry.catalog.entries import EntryInfo
from deltahub.registry.errors import RegistryError
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
from deltahub.server.cards.plain_values import plain, read_json
from deltahub.server.hub import Hub

log = logging.getLogger(__name__)

_MAX_JSON_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 16 << 20
# (reader, SHA-256 of the file) -> parsed contents. Entries never become stale, because the key
# names the contents. Limit: 16 MiB.
_CACHE: Final[ByteCache[tuple[str, str], dict[str, Any]]] = ByteCache(16 << 20)
_SHARD: Final = re.compile(r"(?P<stem>[^/]+)-\d{5}-of-\d{5}\.safetensors")
# Files that tell the library if the card does not name one; the first that exists decides.
_CONFIGS: Final = (
    (ADAPTER, "peft"),
    ("config_sentence_transformers.json", "sentence-transformers"),
    ("model_index.json", "diffusers"),
    ("config.json", "transformers"),
)
_Fetch: TypeAlias = Callable[[Hub, EntryInfo], bytes | None]
_Parse: TypeAlias = Callable[[EntryInfo, bytes], Any]
_CONFIG_KEYS: Final = ("architectures", "model_type", "auto_map", "quantization_config")


@dataclass(frozen=True)
class Facts:
    """The facts of one revision. parameters: dtype -> number of elements, None if unknown."""

    card: Mapping[str, Any]
    config: Mapping[str, Any]
    library: str | None
    pipeline: str | None
    tags: list[str]
    parameters: Mapping[str, int] | None


def read_facts(
    hub: Hub,
    entries: Sequence[EntryInfo],
    base: DeclaredBase | None = None,
    measured: Sequence[str] = (),
) -> Facts:
    """Read the facts of a revision from its files. A file that cannot be read adds nothing.

    base: the declared base, a model of this hub. If the card names no base but the adapter's
    configuration names this one, the card is shown as if it named it. Tags use the base's name of
    today, and contain it even if only the push declared it.
    measured: names of the models that the weights were found to derive from, added as tags.
    """
    files = {entry.path: entry for entry in entries}
    card = _read(hub, files.get(CARD), "card")
    if base is not None and base_in_card(card) is None:
        adapter = _read(hub, files.get(ADAPTER), "json")
        if base_in_adapter(adapter) == base.declared_name:
            card = card | {"base_model": base.name, "base_model_relation": "adapter"}
    library = card.get("library_name")
    found = next((name for path, name in _CONFIGS if path in files), None)
    library = library if isinstance(library, str) else found
    config = {
        key: value
        for key, value in _read(hub, files.get("config.json"), "json").items()
        if key in _CONFIG_KEYS
    }
    pipeline = card.get("pipeline_tag")
    pipeline = pipeline if isinstance(pipeline, str) else None
    tags = [library] if library else []
    if any(path.endswith(".safetensors") for path in files):
        tags.append("safetensors")
    model_type = config.get("model_type")
    tags += [model_type] if isinstance(model_type, str) else []
    tags += [pipeline] if pipeline else []
    parameters = _parameters(hub, weight_files(files))
    renamed = (
        {}
        if base is None or base_in_card(card) != base.declared_name
        else {base.declared_name: base.name}
    )
    tagged_card = card
    if base is not None and base_in_card(card) is None:
        tagged_card = card | {"base_model": base.name}
    tags += [
        *card_tags(tagged_card, renamed, files),
        *(f"base_model:{MEASURED}:{it}" for it in measured),
    ]
    tags = list(dict.fromkeys(tags))
    return Facts(card, config, library, pipeline, tags, parameters)


def weight_files(files: Mapping[str, EntryInfo]) -> list[EntryInfo]:
    """Return the files that hold the model's weights, each tensor once: one file, or its shards."""
    at_root = {path for path in files if "/" not in path and path.endswith(".safetensors")}
    for whole in ("model.safetensors", "adapter_model.safetensors"):
        if whole in at_root:
            return [files[whole]]
    shards: dict[str, list[str]] = {}
    for path in at_root:
        match = _SHARD.fullmatch(path)
        if match is not None:
            shards.setdefault(match["stem"], []).append(path)
    stem = "model" if "model" in shards else min(shards, default=None)
    chosen = shards[stem] if stem is not None else sorted(at_root)[:1]
    return [files[path] for path in sorted(chosen)]


def read_header(hub: Hub, entry: EntryInfo) -> bytes:
    """Return the JSON header of a safetensors file, unparsed, at most 16 MiB.

    Raises InvalidSafetensors.
    """
    file = entry.file
    first = b"".join(hub.reader.stream_file(file, 0, min(LENGTH_BYTES, file.size)))
    end = header_length(first, file.size)
    if end > _MAX_HEADER_BYTES:
        raise InvalidSafetensors(f"{entry.path}: a header of {end} bytes is not shown")
    return b"".join(hub.reader.stream_file(file, LENGTH_BYTES, end))


def read_small(hub: Hub, entry: EntryInfo, max_bytes: int) -> bytes | None:
    """Return the bytes of a file; None if it has more than `max_bytes` bytes."""
    if entry.file.size > max_bytes:
        return None
    return b"".join(hub.reader.stream_file(entry.file, 0, entry.file.size))


def _parameters(hub: Hub, weights: Sequence[EntryInfo]) -> dict[str, int] | None:
    totals: dict[str, int] = {}
    for entry in weights:
        counts = _read(hub, entry, "counts")
        for dtype, count in counts.items():
            totals[dtype] = totals.get(dtype, 0) + count
    return totals or None


def _read(hub: Hub, entry: EntryInfo | None, reader: str) -> dict[str, Any]:
    """The parsed contents of a file as plain values; {} and a log line if it cannot be read."""
    if entry is None:
        return {}
    key = (reader, entry.file.sha256)
    known = _CACHE.get(key)
    if known is not None:
        return known
    fetch, parse = _READERS[reader]
    try:
        data = fetch(hub, entry)
    except InvalidSafetensors as error:
        known = _unreadable(entry, error)
    except (RegistryError, CodecError) as error:
        return _unreadable(entry, error)  # not cached: a later fetch may succeed
    else:
        known = {} if data is None else _parsed(parse, entry, data)
    # Failures are cached too: otherwise each list of models would parse the broken file again.
    _CACHE.put(key, known, 256 + len(json.dumps(known)))
    return known


def _parsed(parse: _Parse, entry: EntryInfo, data: bytes) -> dict[str, Any]:
    try:
        found = plain(parse(entry, data))
    except (BadCard, CodecError, ValueError) as error:
        return _unreadable(entry, error)
    except Exception as error:  # one model's file must not break a list of many models
        log.exception("file=%s sha256=%s broke its parser", entry.path, entry.file.sha256)
        return _unreadable(entry, error)
    return found if isinstance(found, dict) else {}


def _unreadable(entry: EntryInfo, error: Exception) -> dict[str, Any]:
    reason = str(error)[:300]
    log.warning("file=%s sha256=%s says nothing: %r", entry.path, entry.file.sha256, reason)
    return {}


def _counts(entry: EntryInfo, text: bytes) -> dict[str, Any]:
    header = parse_header(len(text).to_bytes(LENGTH_BYTES, "little") + text, entry.file.size)
    counts: dict[str, Any] = {}
    for tensor in header.tensors:
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + prod(tensor.shape)
    return counts


# Reader -> (how to fetch the bytes, None if the file is too large; how to parse them).
_READERS: Final[Mapping[str, tuple[_Fetch, _Parse]]] = {
    "card": (
        partial(read_small, max_bytes=MAX_CARD_BYTES),
        lambda _entry, data: front_matter(data),
    ),
    "json": (partial(read_small, max_bytes=_MAX_JSON_BYTES), lambda _entry, data: read_json(data)),
    "counts": (read_header, _counts),
}

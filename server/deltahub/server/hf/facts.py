"""What a revision says of itself: its card, its configuration, its numbers of parameters."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from deltahub.codecs.errors import InvalidSafetensors
from deltahub.codecs.safetensors import LENGTH_BYTES, header_length, parse_header
from deltahub.registry.byte_cache import ByteCache
from deltahub.registry.entries import EntryInfo
from deltahub.registry.errors import RegistryError
from deltahub.registry.lineage import DeclaredBase
from deltahub.server.hf.cards import (
    ADAPTER,
    CARD,
    MAX_CARD_BYTES,
    BadCard,
    base_in_adapter,
    front_matter,
    named_base,
    tags_of,
)
from deltahub.server.hub import Hub

_MAX_JSON_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 16 << 20
# By contents, so nothing in it is ever out of date.
_CACHE: Final[ByteCache[tuple[str, str], dict[str, Any]]] = ByteCache(16 << 20)
_SHARD: Final = re.compile(r"(?P<stem>[^/]+)-\d{5}-of-\d{5}\.safetensors")
# Files by which a library is known where the card does not name it.
_CONFIGS: Final = (
    (ADAPTER, "peft"),
    ("config_sentence_transformers.json", "sentence-transformers"),
    ("model_index.json", "diffusers"),
    ("config.json", "transformers"),
)
_SHOWN_OF_CONFIG: Final = ("architectures", "model_type", "auto_map", "quantization_config")


@dataclass(frozen=True)
class Facts:
    """parameters: dtype -> number of elements, None without safetensors."""

    card: Mapping[str, Any]
    config: Mapping[str, Any]
    library: str | None
    pipeline: str | None
    tags: list[str]
    parameters: Mapping[str, int] | None


def facts_of(hub: Hub, entries: Sequence[EntryInfo], base: DeclaredBase | None = None) -> Facts:
    """What the files of a revision say. What cannot be read says nothing.

    base: the model here that the revision was made from; an adapter whose card names none, and
    whose configuration names this one, is shown as if its card did. Tags say how it is called now,
    whatever it was called when the card was written.
    """
    files = {entry.path: entry for entry in entries}
    card = _read(hub, files.get(CARD), "card")
    if base is not None and named_base(card) is None:
        adapter = _read(hub, files.get(ADAPTER), "json")
        if base_in_adapter(adapter) == base.said:
            card = card | {"base_model": base.name, "base_model_relation": "adapter"}
    library = card.get("library_name")
    found = next((name for path, name in _CONFIGS if path in files), None)
    library = library if isinstance(library, str) else found
    config = {
        key: value
        for key, value in _read(hub, files.get("config.json"), "json").items()
        if key in _SHOWN_OF_CONFIG
    }
    pipeline = card.get("pipeline_tag")
    pipeline = pipeline if isinstance(pipeline, str) else None
    tags = [library] if library else []
    if any(path.endswith(".safetensors") for path in files):
        tags.append("safetensors")
    model_type = config.get("model_type")
    tags += [model_type] if isinstance(model_type, str) else []
    tags += [pipeline] if pipeline else []
    parameters = _parameters(hub, weights_of(files))
    renamed = {} if base is None or named_base(card) != base.said else {base.said: base.name}
    tags = list(dict.fromkeys([*tags, *tags_of(card, renamed, files)]))
    return Facts(card, config, library, pipeline, tags, parameters)


def weights_of(files: Mapping[str, EntryInfo]) -> list[EntryInfo]:
    """The safetensors files that make up the model, each tensor once: one file, or its shards."""
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


def header_of(hub: Hub, entry: EntryInfo) -> bytes:
    """The JSON at the begin of a safetensors file, as it lies there. InvalidSafetensors."""
    file = entry.file
    first = b"".join(hub.restorer.stream_file(file, 0, min(LENGTH_BYTES, file.size)))
    end = header_length(first, file.size)
    if end > _MAX_HEADER_BYTES:
        raise InvalidSafetensors(f"{entry.path}: a header of {end} bytes is not shown")
    return b"".join(hub.restorer.stream_file(file, LENGTH_BYTES, end))


def read_small(hub: Hub, entry: EntryInfo, most: int) -> bytes | None:
    """A file's bytes; None where it is larger."""
    if entry.file.size > most:
        return None
    return b"".join(hub.restorer.stream_file(entry.file, 0, entry.file.size))


def _parameters(hub: Hub, weights: Sequence[EntryInfo]) -> dict[str, int] | None:
    totals: dict[str, int] = {}
    for entry in weights:
        counts = _read(hub, entry, "counts")
        for dtype, count in counts.items():
            totals[dtype] = totals.get(dtype, 0) + count
    return totals or None


def _read(hub: Hub, entry: EntryInfo | None, what: str) -> dict[str, Any]:
    if entry is None:
        return {}
    key = (what, entry.file.sha256)
    known = _CACHE.get(key)
    if known is None:
        try:
            known = _PARSERS[what](hub, entry)
        except (BadCard, InvalidSafetensors, RegistryError, ValueError, RecursionError):
            return {}
        _CACHE.put(key, known, 256 + len(json.dumps(known)))
    return known


def _card(hub: Hub, entry: EntryInfo) -> dict[str, Any]:
    data = read_small(hub, entry, MAX_CARD_BYTES)
    return {} if data is None else front_matter(data)


def _json(hub: Hub, entry: EntryInfo) -> dict[str, Any]:
    data = read_small(hub, entry, _MAX_JSON_BYTES)
    found = {} if data is None else json.loads(data)
    return found if isinstance(found, dict) else {}


def _counts(hub: Hub, entry: EntryInfo) -> dict[str, Any]:
    file = entry.file
    text = header_of(hub, entry)
    header = parse_header(len(text).to_bytes(LENGTH_BYTES, "little") + text, file.size)
    counts: dict[str, Any] = {}
    for tensor in header.tensors:
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + prod(tensor.shape)
    return counts


_PARSERS: Final = {"card": _card, "json": _json, "counts": _counts}

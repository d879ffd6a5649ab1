"""The safetensors headers of all shards of a model, in one answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.codecs.errors import InvalidSafetensors
from deltahub.codecs.files.json_bounds import json_fault
from deltahub.codecs.files.safetensors import LENGTH_BYTES
from deltahub.registry import Revision, cancellation
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.cards.facts import read_small
from deltahub.registry.cards.headers import header_facts, header_size
from deltahub.registry.cards.plain_values import MAX_NESTING, read_json
from deltahub.registry.catalog.entries import EntryInfo, entries_at, find_entry
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.errors import InvalidRequest, LimitExceeded
from deltahub.registry.names import quoted
from deltahub.registry.packs.block_cache import ByteCache
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.connections.inner_paths import unescaped
from deltahub.server.hf.reading.revisions import plain_revision
from deltahub.server.hub import CallerDep, Hub, HubDep, NameDep
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.streaming.long_answers import json_text
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, prefix="/api/models/{namespace}/{name}")

_MAX_INDEX_BYTES: Final = 16 << 20
# An index has a name and a file for each tensor.
_MAX_INDEX_VALUES: Final = 500_000
_MAX_REST_BYTES: Final = 1 << 20
_MAX_SHARDS: Final = 1000
# Parsing takes several times the size of an index, so indexes are parsed one at a time.
_PARSING: Final = Lock()


@dataclass(frozen=True)
class _Index:
    """rest: the JSON of an index without its weight_map. shards: the files that that one names."""

    rest: bytes
    shards: tuple[str, ...]


# SHA-256 of the index -> what it says. The key names the contents. Limit: 4 MiB.
_CACHE: Final[ByteCache[str, _Index]] = ByteCache(4 << 20)


@router.get("/safetensors-metadata/{path:path}")
@reads(is_heavy=True)
def get_safetensors_metadata(
    name: NameDep,
    path: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    revision: str = DEFAULT_BRANCH,
) -> Response:
    """Show the index of a sharded model, and the safetensors headers of its files.

    As on huggingface.co the index comes without its weight_map, which repeats names of the headers.
    """
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        found = resolve_revision(session, repository, plain_revision(revision))
        index_entry = find_entry(session, found, unescaped(path))
    index = _read_index(hub, index_entry)
    folder = index_entry.path.rpartition("/")[0]
    places = {shard: f"{folder}/{shard}" if folder else shard for shard in index.shards}
    with hub.registry.db.read() as session:
        entries = entries_at(session, found, places.values())
        for place in places.values():
            if place not in entries:
                find_entry(session, found, place)  # raises, with the right message
    sizes = _checked_sizes(hub, index_entry, [entries[place] for place in places.values()])
    texts = _texts(index)
    n_bytes = sum(map(len, texts)) + sum(sizes[entries[place].sha256] for place in places.values())
    return hub.stream(
        client_key(request, caller),
        _pieces(hub, found, texts, list(places.values())),
        status_code=200,
        headers={"Content-Type": "application/json", "Content-Length": str(n_bytes)},
        label=f"{name}@{found.commit} headers",
    )


def _read_index(hub: Hub, entry: EntryInfo) -> _Index:
    known = _CACHE.get(entry.sha256)
    if known is not None:
        return known
    not_one = InvalidRequest(f"{quoted(entry.path)} is no index of shards")
    with _PARSING:
        data = read_small(hub.reader, entry, _MAX_INDEX_BYTES)
        if data is None:
            raise LimitExceeded(
                f"{quoted(entry.path)} has {entry.size} bytes, an index at most {_MAX_INDEX_BYTES}:"
                " download it"
            )
        fault = json_fault(data, MAX_NESTING, _MAX_INDEX_VALUES // 10, _MAX_INDEX_VALUES)
        if fault is not None:
            raise InvalidRequest(f"{not_one}: {fault}")
        try:
            index = read_json(data)
            named = sorted({str(shard) for shard in index.pop("weight_map").values()})
            rest = json_text(index)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise not_one from error
    if len(rest) > _MAX_REST_BYTES:
        raise LimitExceeded(
            f"{quoted(entry.path)} has {len(rest)} bytes beside its weight_map, and this answer"
            f" shows at most {_MAX_REST_BYTES}: download it"
        )
    if len(named) > _MAX_SHARDS:
        raise LimitExceeded(
            f"{quoted(entry.path)} names {len(named)} files, and this answer holds the headers of"
            f" at most {_MAX_SHARDS}: read each file's header by a range"
        )
    found = _Index(rest, tuple(named))
    _CACHE.put(entry.sha256, found, 400 + len(rest) + sum(len(name) + 100 for name in named))
    return found


def _checked_sizes(hub: Hub, index_entry: EntryInfo, shards: Sequence[EntryInfo]) -> dict[str, int]:
    """SHA-256 -> bytes of the header, for sound headers that fit into one answer.

    A file under several paths is read once, but its header counts for each.
    """
    limit = hub.settings.max_headers_bytes
    sizes: dict[str, int] = {}
    n_bytes = 0
    try:
        for entry in shards:
            cancellation.check()
            if entry.sha256 not in sizes:
                sizes[entry.sha256] = header_size(hub.reader, entry)
            n_bytes += sizes[entry.sha256]
            if n_bytes > limit:
                raise LimitExceeded(
                    f"the headers of the {len(shards)} files of {quoted(index_entry.path)} have"
                    f" more than {limit} bytes: read each file's header by a range, as"
                    " get_safetensors_metadata does"
                )
        for entry in {entry.sha256: entry for entry in shards}.values():
            cancellation.check()
            header_facts(hub.reader, entry)
    except InvalidSafetensors as error:
        raise InvalidRequest(f"{quoted(entry.path)} is no safetensors file: {error}") from error
    return sizes


def _texts(index: _Index) -> list[bytes]:
    """The JSON text between the headers of the shards, one more than there are shards."""
    texts = [b'{"index":' + index.rest + b',"headers":{']
    for number, shard in enumerate(index.shards):
        texts[-1] += (b"," if number else b"") + json_text(shard) + b":"
        texts.append(b"")
    texts[-1] += b"}}"
    return texts


def _pieces(
    hub: Hub, revision: Revision, texts: Sequence[bytes], places: Sequence[str]
) -> Iterator[bytes | memoryview]:
    """The answer. Headers stand in it as they are in the files, because sound ones are JSON."""
    yield texts[0]
    for place, text in zip(places, texts[1:], strict=True):
        # Read again, so that an answer that waits for its turn holds no rows.
        with hub.registry.db.read() as session:
            entry = find_entry(session, revision, place)
        end = LENGTH_BYTES + header_size(hub.reader, entry)
        yield from hub.reader.stream_pieces(entry.file, LENGTH_BYTES, end)
        yield text

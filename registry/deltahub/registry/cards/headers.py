"""The headers of safetensors files: their sizes, whether they are sound, what they count."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from threading import Lock
from typing import Final

from deltahub.codecs.errors import CodecError, InvalidSafetensors
from deltahub.codecs.exports.file import weight_of_part
from deltahub.codecs.exports.metadata import parse_metadata
from deltahub.codecs.files.safetensors import (
    LENGTH_BYTES,
    SafetensorsHeader,
    header_length,
    parse_header,
)
from deltahub.registry.cards.spent import Spent
from deltahub.registry.catalog.entries import EntryInfo
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.packs.block_cache import ByteCache

# Largest header that the hub shows or counts, in bytes. Downloads of the file have no such limit.
MAX_HEADER_BYTES: Final = 16 << 20
# Parsing takes up to ten times the size of a header, so headers are parsed one at a time.
_PARSING: Final = Lock()
# SHA-256 of the file -> facts, or the text of an InvalidSafetensors. The key names the contents, so
# nothing here becomes stale. Limit: about 10,000 files.
_CACHE: Final[ByteCache[str, "HeaderFacts | str"]] = ByteCache(4 << 20)
_FACTS_BYTES: Final = 400


@dataclass(frozen=True)
class HeaderFacts:
    """What a sound header says. counts: dtype -> number of elements; of a compressed weight of an
    export, those that it decodes to.
    """

    n_bytes: int
    counts: Mapping[str, int]


def header_size(reader: FileReader, entry: EntryInfo) -> int:
    """Return the bytes of a file's header, without the 8 before it. Raises InvalidSafetensors."""
    known = _CACHE.get(entry.sha256)
    if isinstance(known, HeaderFacts):
        return known.n_bytes
    if known is not None:
        raise InvalidSafetensors(known)
    first = b"".join(reader.stream_file(entry.file, 0, min(LENGTH_BYTES, entry.size)))
    return header_length(first, entry.size) - LENGTH_BYTES


def header_facts(reader: FileReader, entry: EntryInfo, spent: Spent | None = None) -> HeaderFacts:
    """Return the facts of a file's header, parsed once. Raises InvalidSafetensors.

    spent: counts the bytes that had to be read.
    """
    known = _CACHE.get(entry.sha256)
    if known is None:
        try:
            known = _parsed(reader, entry)
            if spent is not None:
                spent.n_bytes += known.n_bytes
        except InvalidSafetensors as error:
            known = str(error)
        _CACHE.put(entry.sha256, known, _FACTS_BYTES + len(known if isinstance(known, str) else ""))
    if isinstance(known, str):
        raise InvalidSafetensors(known)
    return known


def _parsed(reader: FileReader, entry: EntryInfo) -> HeaderFacts:
    size = header_size(reader, entry)
    if size > MAX_HEADER_BYTES:
        raise InvalidSafetensors(
            f"a header of {size} bytes is not shown, only up to {MAX_HEADER_BYTES}: read it from"
            " the file by a range"
        )
    with _PARSING:
        head = b"".join(reader.stream_file(entry.file, 0, LENGTH_BYTES + size))
        counts = _counts(parse_header(head, entry.size))
    return HeaderFacts(size, counts)


def _counts(header: SafetensorsHeader) -> dict[str, int]:
    try:
        weights = parse_metadata(header.metadata)
    except CodecError:  # no export, or none that anybody can read
        weights = {}
    tensors = [
        (tensor.dtype, tensor.shape)
        for tensor in header.tensors
        if weight_of_part(tensor.name) not in weights
    ]
    tensors += [(how.dtype.name, shape) for shape, how in weights.values()]
    counts: dict[str, int] = {}
    for dtype, shape in tensors:
        counts[dtype] = counts.get(dtype, 0) + prod(shape)
    return counts

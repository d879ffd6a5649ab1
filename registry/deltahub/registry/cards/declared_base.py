"""The base model that the files of a commit declare, for /v1 and for Hugging Face clients.

The model card counts first, then the configuration of an adapter.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.access.visibility import readable_files
from deltahub.registry.cards.card import (
    ADAPTER,
    CARD,
    MAX_CARD_BYTES,
    base_in_adapter,
    base_in_card,
)
from deltahub.registry.cards.facts import read_small
from deltahub.registry.cards.front_matter import BadCard, front_matter
from deltahub.registry.cards.plain_values import read_json
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.catalog.operations import AddFile, Operation
from deltahub.registry.catalog.refs import find_ref
from deltahub.registry.db.models import File, Landing
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import EntryNotFound
from deltahub.registry.landings.reader import LandingReader
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound
from deltahub.registry.uploads.committable import complete_uploads

# The files that may name a base; no other file is read.
BASE_FILES: Final = (CARD, ADAPTER)


def declared_base(
    reg: Registry,
    reader: FileReader,
    caller: Caller,
    name: str,
    branch: str,
    files: Mapping[str, bytes],
) -> str | None:
    """Return the base that the files of a commit name; None if none does.

    files: path -> bytes of the files of BASE_FILES. A card counts before an adapter's
    configuration, even a card that the branch has and the commit does not change.
    """
    base = base_in_card_file(files[CARD]) if CARD in files else None
    if base is not None or ADAPTER not in files:
        return base
    base = _base_in_adapter_file(files[ADAPTER])
    card_names_base = (
        base is not None and CARD not in files and _has_base(reg, reader, caller, name, branch)
    )
    return None if card_names_base else base


def read_base_files(
    reg: Registry,
    reader: FileReader,
    caller: Caller | None,
    name: str,
    operations: Sequence[Operation],
) -> dict[str, bytes]:
    """Return path -> bytes of the files of BASE_FILES that the operations add.

    Two kinds of files are left out: files above MAX_CARD_BYTES, and files that the caller has
    neither uploaded nor may read, because the commit refuses them later.
    """
    wanted = {
        each.path: each.sha256
        for each in operations
        if isinstance(each, AddFile) and each.path in BASE_FILES and each.size <= MAX_CARD_BYTES
    }
    if not wanted:
        return {}
    writer = require_writer(caller)
    with reg.db.read() as session:
        repository = load_repository(session, writer, name, "write")
        uploads = complete_uploads(session, writer, set(wanted.values()))
        known = readable_files(session, writer, repository, set(wanted.values()))
    found = {}
    for path, sha256 in wanted.items():
        data = _read(reg, reader, uploads.get(sha256), known.get(sha256))
        if data is not None:
            found[path] = data
    return found


def base_in_card_file(card: bytes) -> str | None:
    """Return the base that a card names; None if it names none or cannot be read."""
    try:
        base = base_in_card(front_matter(card))
    except BadCard:
        return None
    fits = base is not None and len(base) <= 300 and base.isprintable()
    return base if fits else None


def _read(
    reg: Registry, reader: FileReader, upload: Landing | None, file: File | None
) -> bytes | None:
    # The commit states a size too, but that one is checked later: use the sizes of the stored data.
    if upload is not None and upload.size <= MAX_CARD_BYTES:
        with suppress(ObjectNotFound):  # the upload was ingested or has expired meanwhile
            return LandingReader(reg, upload.id).read_at(0, upload.size)
    if file is not None and file.size <= MAX_CARD_BYTES:
        with suppress(EntryNotFound):  # the file was deleted meanwhile
            return b"".join(reader.stream_file(file, 0, file.size))
    return None


def _has_base(reg: Registry, reader: FileReader, caller: Caller, name: str, branch: str) -> bool:
    """Whether the card at the head of the branch names a base."""
    with reg.db.read() as session:
        head = find_ref(session, load_repository(session, caller, name, "write"), "branch", branch)
        card = None if head is None else entries_at(session, head, [CARD]).get(CARD)
    data = None if card is None else read_small(reader, card, MAX_CARD_BYTES)
    return data is not None and base_in_card_file(data) is not None


def _base_in_adapter_file(config: bytes) -> str | None:
    """The base that an adapter's configuration names; None if it cannot be read."""
    try:
        parsed = read_json(config)
    except ValueError:
        return None
    return base_in_adapter(parsed) if isinstance(parsed, dict) else None

"""The JSON of a model in the Hugging Face API: facts of its repository and one revision."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltahub.registry import ReadSession, Revision
from deltahub.registry.access.caller import Caller
from deltahub.registry.catalog.declared_base import DeclaredBase, find_declared, resolve_declared
from deltahub.registry.catalog.entries import used_storage
from deltahub.registry.catalog.pages.entries import ListedEntry, entry_pages, path_pages
from deltahub.registry.catalog.search import Listed
from deltahub.registry.lineage.measured import measured_bases
from deltahub.server.cards.facts import NO_FILES, RevisionFiles, find_files, read_facts
from deltahub.server.cards.spent import Spent
from deltahub.server.hf.reading.entries import blob_id, lfs_pointer, utc_text
from deltahub.server.hub import Hub
from deltahub.server.streaming.long_answers import json_with_lists

# The property that lists all entries, which is made in pieces.
SIBLINGS = "siblings"


@dataclass(frozen=True)
class ModelRows:
    """Database rows of a model. revision: None if it is empty.

    used_storage: None if it is not shown. base: the declared base, if it is a model here and the
    caller may read it. measured: names of the models that its weights were measured to derive from.
    """

    listed: Listed
    revision: Revision | None
    files: RevisionFiles
    used_storage: int | None
    base: DeclaredBase | None
    measured: tuple[str, ...] = ()


def load_rows(
    session: ReadSession,
    caller: Caller | None,
    listed: Listed,
    revision: Revision | None,
    spent: Spent,
    *,
    has_storage: bool,
) -> ModelRows:
    """Load the rows of a model at a revision. has_storage: with the bytes that it uses."""
    files = NO_FILES if revision is None else find_files(session, revision, spent)
    base = None if revision is None else find_declared(session, caller, revision)
    if base is not None and base.revision is None:
        # A base that came after this revision is found by its name, until it is ingested.
        is_known = revision is not None and revision.declared_base_revision_id is not None
        if is_known or resolve_declared(session, caller, base.text) is None:
            base = None
    measured = () if revision is None else measured_bases(session, caller, revision)
    used = None
    if has_storage:
        found = used_storage(session, listed.repository)
        spent.n_entries += found.n_read
        used = found.n_bytes
    return ModelRows(listed, revision, files, used, base, measured)


def model_json(hub: Hub, rows: ModelRows, spent: Spent) -> dict[str, Any]:
    """Return the JSON of a model without its siblings. Reads its card and other small files."""
    repository, revision = rows.listed.repository, rows.revision
    facts = read_facts(hub, rows.files, spent, rows.base, rows.measured)
    changed_at = repository.created_at if revision is None else revision.created_at
    info: dict[str, Any] = {
        "_id": f"{repository.id:024x}",
        "id": rows.listed.name,
        "modelId": rows.listed.name,
        "author": rows.listed.name.partition("/")[0],
        "private": repository.is_private,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": facts.tags,
        "createdAt": utc_text(repository.created_at),
        "lastModified": utc_text(changed_at),
    }
    if rows.used_storage is not None:
        info["usedStorage"] = rows.used_storage
    if revision is not None:
        info["sha"] = revision.commit
    if facts.card:
        info["cardData"] = facts.card
    if facts.config:
        info["config"] = facts.config
    if facts.library:
        info["library_name"] = facts.library
    if facts.pipeline:
        info["pipeline_tag"] = facts.pipeline
    if facts.parameters:
        total = sum(facts.parameters.values())
        info["safetensors"] = {"parameters": dict(facts.parameters), "total": total}
    return info


def list_json(
    info: dict[str, Any], *, full: bool, card: bool, config: bool, expand: Sequence[str] | None
) -> dict[str, Any]:
    """Return the part of a model's JSON that a list shows, without siblings."""
    if expand is not None:
        return {key: info[key] for key in ("_id", "id", *expand) if key in info}
    left_out = {"usedStorage", "safetensors", "disabled"}
    if not full:
        left_out.add("author")
    if not (card or full):
        left_out.add("cardData")
    if not (config or full):
        left_out.add("config")
    return {key: value for key, value in info.items() if key not in left_out}


def with_siblings(
    hub: Hub, shown: Mapping[str, Any], revision: Revision | None, *, with_blobs: bool = False
) -> Iterator[bytes]:
    """Yield the JSON text of a model in pieces, with all entries of the revision."""
    batches: Iterator[list[dict[str, Any]]] = iter(())
    if revision is not None and with_blobs:
        batches = (list(map(_with_blob, page)) for page in entry_pages(hub.registry, revision))
    elif revision is not None:
        batches = (
            [{"rfilename": path} for path in page] for page in path_pages(hub.registry, revision)
        )
    return json_with_lists(shown, {SIBLINGS: batches})


def _with_blob(entry: ListedEntry) -> dict[str, Any]:
    shown: dict[str, Any] = {"rfilename": entry.path}
    shown |= {"size": entry.size, "blobId": blob_id(entry)}
    if entry.mode == "lfs":
        shown["lfs"] = {
            "sha256": entry.sha256,
            "size": entry.size,
            "pointerSize": len(lfs_pointer(entry)),
        }
    return shown

"""The JSON of a model in the Hugging Face API: facts of its repository and one revision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deltahub.registry import ReadSession, Revision
from deltahub.registry.access.caller import Caller
from deltahub.registry.catalog.declared_base import DeclaredBase, find_declared, resolve_declared
from deltahub.registry.catalog.entries import EntryInfo, list_entries, used_storage
from deltahub.registry.catalog.search import Listed
from deltahub.registry.lineage.measured import measured_bases
from deltahub.server.cards.facts import read_facts
from deltahub.server.hf.reading.entries import blob_id, lfs_pointer, utc_text
from deltahub.server.hub import Hub


@dataclass(frozen=True)
class ModelRows:
    """Database rows of a model. revision: None if it is empty.

    base: the declared base, if it is a model here and the caller may read it. measured: names of
    the models that its weights were measured to derive from.
    """

    listed: Listed
    revision: Revision | None
    entries: list[EntryInfo]
    used_storage: int
    base: DeclaredBase | None
    measured: tuple[str, ...] = ()


def load_rows(
    session: ReadSession, caller: Caller | None, listed: Listed, revision: Revision | None
) -> ModelRows:
    """Load the rows of a model at a revision."""
    entries = [] if revision is None else list_entries(session, revision)
    base = None if revision is None else find_declared(session, caller, revision)
    if base is not None and base.revision is None:
        # A base that came after this revision is found by its name, until it is ingested.
        is_known = revision is not None and revision.declared_base_revision_id is not None
        if is_known or resolve_declared(session, caller, base.text) is None:
            base = None
    measured = () if revision is None else measured_bases(session, caller, revision)
    used = used_storage(session, listed.repository)
    return ModelRows(listed, revision, entries, used, base, measured)


def model_json(hub: Hub, rows: ModelRows, *, with_blobs: bool = False) -> dict[str, Any]:
    """Return the JSON of a model with all properties. Reads its card and other small files."""
    repository, revision = rows.listed.repository, rows.revision
    facts = read_facts(hub, rows.entries, rows.base, rows.measured)
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
        "siblings": [_sibling(entry, with_blobs) for entry in rows.entries],
        "usedStorage": rows.used_storage,
    }
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
    """Return the part of a model's JSON that a list shows."""
    if expand is not None:
        return {key: info[key] for key in ("_id", "id", *expand) if key in info}
    left_out = {"usedStorage", "safetensors", "disabled"}
    if not full:
        left_out |= {"siblings", "author"}
    if not (card or full):
        left_out.add("cardData")
    if not (config or full):
        left_out.add("config")
    return {key: value for key, value in info.items() if key not in left_out}


def _sibling(entry: EntryInfo, with_blobs: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {"rfilename": entry.path}
    if with_blobs:
        shown |= {"size": entry.file.size, "blobId": blob_id(entry)}
        if entry.mode == "lfs":
            shown["lfs"] = {
                "sha256": entry.file.sha256,
                "size": entry.file.size,
                "pointerSize": len(lfs_pointer(entry)),
            }
    return shown

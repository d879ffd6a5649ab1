"""The JSON of a model in the Hugging Face API: facts of its repository and one revision."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltahub.registry import ReadSession, Revision
from deltahub.registry.access.caller import Caller
from deltahub.registry.cards.card import RELATIONS
from deltahub.registry.cards.describe import facts_without_row, load_facts
from deltahub.registry.cards.facts import NO_FACTS, Facts, shown_tags
from deltahub.registry.cards.spent import Spent
from deltahub.registry.catalog.entries import used_storage
from deltahub.registry.catalog.lists.search import Listed
from deltahub.registry.catalog.pages.entries import ListedEntry, entry_pages, path_texts
from deltahub.registry.lineage.shown_bases import ShownBases, shown_bases
from deltahub.server.hf.reading.entries import blob_id, lfs_pointer, utc_text
from deltahub.server.hub import Hub
from deltahub.server.streaming.long_answers import json_text, json_with_lists

# The property that lists all entries, which is made in pieces.
SIBLINGS = "siblings"


@dataclass(frozen=True)
class ModelRows:
    """What the database knows of a model at a revision. revision: None if it is empty.

    facts: None if they have no row. used_storage: None if it is not shown.
    """

    listed: Listed
    revision: Revision | None
    facts: Facts | None
    bases: ShownBases
    used_storage: int | None


def load_rows(
    session: ReadSession,
    caller: Caller | None,
    models: Sequence[tuple[Listed, Revision | None]],
    spent: Spent,
    *,
    has_storage: bool,
    has_files: bool,
) -> list[ModelRows]:
    """Load the rows of models, each at a revision, in a few queries for all.

    has_storage: with the bytes that each uses, by a query each. has_files: with the card and the
    configuration.
    """
    revisions = [revision for _, revision in models if revision is not None]
    facts = load_facts(session, [each.id for each in revisions], with_files=has_files)
    bases = shown_bases(session, caller, revisions)
    rows = []
    for listed, revision in models:
        used = None
        if has_storage:
            found = used_storage(session, listed.repository)
            spent.n_entries += found.n_read
            used = found.n_bytes
        if revision is None:
            rows.append(ModelRows(listed, None, NO_FACTS, ShownBases(), used))
            continue
        row = ModelRows(listed, revision, facts.get(revision.id), bases[revision.id], used)
        rows.append(row)
    return rows


def facts_of(hub: Hub, rows: ModelRows, spent: Spent) -> Facts:
    """Return the facts of a model, from its files if they have no row yet."""
    if rows.facts is not None:
        return rows.facts
    assert rows.revision is not None, "an empty model has facts"
    return facts_without_row(hub.registry, hub.reader, rows.revision, spent)


def model_json(rows: ModelRows, facts: Facts) -> dict[str, Any]:
    """Return the JSON of a model without its siblings."""
    repository, revision = rows.listed.repository, rows.revision
    tags, card = shown_tags(facts, rows.bases.declared, rows.bases.measured)
    changed_at = repository.created_at if revision is None else revision.created_at
    info: dict[str, Any] = {
        "_id": f"{repository.id:024x}",
        "id": rows.listed.name,
        "modelId": rows.listed.name,
        "author": rows.listed.name.partition("/")[0],
        "private": repository.is_private,
        "gated": False,
        "disabled": False,
        "downloads": repository.downloads,
        "downloadsAllTime": repository.downloads,
        "likes": 0,
        "tags": tags,
        "createdAt": utc_text(repository.created_at),
        "lastModified": utc_text(changed_at),
    }
    if rows.used_storage is not None:
        info["usedStorage"] = rows.used_storage
    if revision is not None:
        info["sha"] = revision.commit
    if card:
        info["cardData"] = card
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


def expanded(info: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the properties of a model that an `expand` parameter names, and the hub knows."""
    card = info.get("cardData", {})
    config = info.get("config", {})
    bases = [
        (relation, base)
        for tag in info["tags"]
        if tag.startswith("base_model:")
        for relation, _, base in (tag.removeprefix("base_model:").partition(":"),)
        if base and relation in RELATIONS
    ]
    more: dict[str, Any] = {
        "trendingScore": 0,
        "spaces": [],
        "inferenceProviderMapping": [],
    }
    if bases:
        models = [{"id": base} for _, base in bases]
        more["baseModels"] = {"relation": bases[0][0], "models": models}
    if "model-index" in card:
        more["model-index"] = card["model-index"]
    if "widget" in card:
        more["widgetData"] = card["widget"]
    architectures = config.get("architectures") or [None]
    if info.get("library_name") == "transformers" and isinstance(architectures[0], str):
        more["transformersInfo"] = {"auto_model": architectures[0]}
        if "pipeline_tag" in info:
            more["transformersInfo"]["pipeline_tag"] = info["pipeline_tag"]
    known = {**more, **info}
    return {key: known[key] for key in ("_id", "id", *names) if key in known}


def list_json(
    info: dict[str, Any], *, full: bool, card: bool, config: bool, expand: Sequence[str] | None
) -> dict[str, Any]:
    """Return the part of a model's JSON that a list shows, without siblings."""
    if expand is not None:
        return expanded(info, expand)
    left_out = {"usedStorage", "safetensors", "disabled", "downloadsAllTime"}
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
    batches: Iterator[list[dict[str, Any]] | bytes] = iter(())
    if revision is not None and with_blobs:
        batches = (list(map(_with_blob, page)) for page in entry_pages(hub.registry, revision))
    elif revision is not None:
        batches = path_texts(hub.registry, revision, _names)
    return json_with_lists(shown, {SIBLINGS: batches})


def _names(paths: Sequence[str]) -> bytes:
    """The siblings with these paths, without the brackets of a list."""
    return json_text([{"rfilename": path} for path in paths])[1:-1]


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

"""What the store holds, and who uses it."""

from collections.abc import Mapping
from typing import Any, Final

from deltahub.registry.access.caller import Caller
from deltahub.registry.reports.lists import storage
from deltahub.registry.reports.lists.pages import Asked, Page
from deltahub.server.hub import Hub
from deltahub.server.tables.table import Column, Filter, Table


def _namespaces(hub: Hub, caller: Caller, asked: Asked, given: Mapping[str, str]) -> Page[Any]:
    return storage.list_namespaces(hub.registry, asked, words=given["words"])


def _packs(hub: Hub, caller: Caller, asked: Asked, given: Mapping[str, str]) -> Page[Any]:
    return storage.list_packs(hub.registry, asked, state=given["state"])


def _findings(hub: Hub, caller: Caller, asked: Asked, given: Mapping[str, str]) -> Page[Any]:
    state = "" if given["state"] == "all" else given["state"]
    return storage.list_findings(hub.registry, asked, state=state, kind=given["kind"])


def _dropped(hub: Hub, caller: Caller, asked: Asked, given: Mapping[str, str]) -> Page[Any]:
    return storage.list_all_dropped(hub.registry, asked, reason=given["reason"])


_KINDS: Final = ("pack", "copy", "landing", "xorb", "tensor")
_REASONS: Final = ("ref removed", "squashed", "file deleted", "pruned")
NAMESPACES: Final = Table(
    "namespaces",
    (
        Column("name", "Namespace", sort="name"),
        Column("kind", "Kind"),
        Column("repositories", "Models", "number", "repositories"),
        Column("stored_bytes", "Stored", "size", "stored"),
        Column("logical_bytes", "Files", "size", "logical"),
        Column("limit_repositories", "Most models", "number", is_shown=False),
        Column("limit_stored_bytes", "Most stored", "size", is_shown=False),
        Column("limit_logical_bytes", "Most files", "size", is_shown=False),
        Column("share", "Used", "percent"),
        Column("is_own", "Own limits", "flag"),
    ),
    _namespaces,
    "-stored",
    (Filter("words", "Name"),),
    ("No namespace matches", "Try fewer letters of the name."),
    about="What namespaces use, and what they may use.",
)
PACKS: Final = Table(
    "packs",
    (
        Column("id", "Pack"),
        Column("state", "State"),
        Column("domain", "Data of"),
        Column("size_bytes", "Size", "size", "size"),
        Column("created_at", "Written", "time", "created"),
        Column("proved_at", "Proved", "time", "proved"),
        Column("has_copy", "Second copy", "flag"),
    ),
    _packs,
    "-created",
    (
        Filter(
            "state",
            "State",
            (("", "any state"), *((each, each) for each in storage.PACK_STATES)),
        ),
    ),
    ("No packs", "The first push makes one."),
    about="The objects that hold the bytes of tensors.",
)
FINDINGS: Final = Table(
    "findings",
    (
        Column("kind", "Kind"),
        Column("target", "Object"),
        Column("code", "Code"),
        Column("text", "What is wrong", is_wide=True),
        Column("n_files", "Files that need it", "number"),
        Column("files", "Such as", "list", is_wide=True),
        Column("state", "State"),
        Column("how", "Repaired by"),
        Column("found_at", "Found", "time", "found"),
        Column("last_seen_at", "Last seen", "time", "seen"),
    ),
    _findings,
    "-found",
    (
        Filter(
            "state",
            "State",
            (("open", "open"), ("repaired", "repaired"), ("gone", "gone"), ("all", "any state")),
            default="open",
        ),
        Filter("kind", "Kind", (("", "any kind"), *((each, each) for each in _KINDS))),
    ),
    ("No damage is known", "Scrubs, fsck and reads that meet damage note it here."),
    about="Damage that scrub, fsck and reads have found.",
)
DROPPED: Final = Table(
    "dropped",
    (
        Column("repository", "Model"),
        Column("commit", "Commit"),
        Column("title", "Message", is_wide=True),
        Column("reason", "Why it went"),
        Column("dropped_by", "By"),
        Column("dropped_at", "Dropped", "time", "dropped"),
    ),
    _dropped,
    "-dropped",
    (Filter("reason", "Why", (("", "any reason"), *((each, each) for each in _REASONS))),),
    ("Nothing was dropped", "Revisions that no branch or tag reaches any more are listed here."),
    about="Revisions that can still be taken back.",
)

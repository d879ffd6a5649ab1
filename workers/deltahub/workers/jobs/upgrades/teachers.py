"""The teacher of a move: an adapter, or the original that it was moved from before.

A copy of a copy would add the errors of both moves up. So every move starts from the original, as
long as the hub has it: a star, not a chain.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from deltahub.methods.kinds.kind import RevisionName
from deltahub.methods.transfer.report import REPORT_FILE
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import full_name
from deltahub.registry.adapters.files import CONFIG
from deltahub.registry.cards.facts import read_small
from deltahub.registry.catalog.declared_base import resolve_declared
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.upgrades.adapters import FoundAdapter
from deltahub.workers.compute.context import ComputeContext

_MAX_REPORT: Final = 16 << 20


class _Provenance(BaseModel):
    adapter: RevisionName
    source_base: RevisionName


class _Report(BaseModel):
    """The part of transfer.json that says where a result comes from."""

    provenance: _Provenance


@dataclass(frozen=True)
class Teacher:
    """The adapter that a move starts from, and its base. title: `namespace/name@commit` of both.

    notes: sentences on why it is this one.
    """

    revision: Revision
    title: str
    base: Revision
    base_title: str
    notes: tuple[str, ...] = ()


def find_teacher(context: ComputeContext, caller: Caller, adapter: FoundAdapter) -> Teacher:
    """The original of an adapter that was moved before; the adapter itself if it is one, or if its
    original cannot be used.
    """
    told = _provenance(context, adapter.revision)
    with context.registry.db.read() as session:
        own = _teacher(session, adapter.revision, adapter.base)
        if told is None:
            return own
        original = resolve_declared(session, caller, told.adapter)
        base = resolve_declared(session, caller, told.source_base)
        name = told.adapter.partition("@")[0]
        why = _why_not(session, adapter, original, base)
        if original is None or base is None or why is not None:
            note = f"it was moved from {name} before, and starts from its own copy, because {why}"
            return Teacher(own.revision, own.title, own.base, own.base_title, (note,))
        found = _teacher(session, original, base)
    note = (
        f"it starts from {name} on {found.base_title.partition('@')[0]}, its original, and not from"
        " its copy, so that errors do not add up"
    )
    return Teacher(found.revision, found.title, found.base, found.base_title, (note,))


def _provenance(context: ComputeContext, revision: Revision) -> _Provenance | None:
    with context.registry.db.read() as session:
        entry = entries_at(session, revision, [REPORT_FILE]).get(REPORT_FILE)
    data = None if entry is None else read_small(context.reader, entry, _MAX_REPORT)
    if data is None:
        return None
    try:
        told: Any = json.loads(data)
        return _Report.model_validate(told).provenance
    except (ValueError, RecursionError, ValidationError):
        return None  # anybody may push a file of this name


def _why_not(
    session: ReadSession, adapter: FoundAdapter, original: Revision | None, base: Revision | None
) -> str | None:
    if original is None:
        return "the original is gone, or you may not read it"
    if base is None:
        return "the original's base is gone, or you may not read it"
    if not entries_at(session, original, [CONFIG]):
        return "the original is no adapter any more"
    for each in (original, base):
        repository = session.get_one(Repository, each.repository_id)
        if repository.is_private and repository.namespace_id != adapter.repository.namespace_id:
            return "the original is private in another namespace"
    return None


def _teacher(session: ReadSession, revision: Revision, base: Revision) -> Teacher:
    return Teacher(revision, _title(session, revision), base, _title(session, base))


def _title(session: ReadSession, revision: Revision) -> str:
    repository = session.get_one(Repository, revision.repository_id)
    return f"{full_name(session, repository)}@{revision.commit}"

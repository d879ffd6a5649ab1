"""Which upgrades a push proposes: those that a card tells of, and those that the weights show.

A card may be believed, because only its owners write it: `new_version` of the old base, or
`base_model_relation: upgrade` of the new one. Weights cannot be: those of a fine-tune are as near
to its base as those of the next version. So weights propose only within one namespace, only for a
model that names no base, and never begin anything.
"""

from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import exists, select
from sqlalchemy.orm import aliased

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import full_name
from deltahub.registry.adapters.files import CONFIG
from deltahub.registry.cards.card import UPGRADE, bases_in_card, model_name, newer_in_card
from deltahub.registry.cards.describe import load_facts
from deltahub.registry.catalog.declared_base import resolve_declared
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.catalog.weights import has_weights
from deltahub.registry.db.models import Repository, Revision, User
from deltahub.registry.db.session import ReadSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.registry import Registry
from deltahub.registry.upgrades.adapters import has_adapter
from deltahub.registry.upgrades.likeness import is_base, likeness
from deltahub.registry.upgrades.plans import find_pair
from deltahub.registry.upgrades.rules import ASK, AUTO, OFF, policy_in_force

Source = Literal["card", "weights"]

# Older bases of a namespace, with adapters, that a push is compared with.
_MOST_OLDER: Final = 20
_Pair = tuple[Revision, Revision, Source]


@dataclass(frozen=True)
class Proposal:
    """An upgrade that the hub proposes in the name of whoever has pushed. policy: ask or auto."""

    caller: Caller
    old: str
    new: str
    source: Source
    policy: str


def find_proposals(reg: Registry, reader: FileReader, revision_id: int) -> list[Proposal]:
    """The upgrades that an ingested revision at the head of main proposes.

    None for a pair of bases that has an upgrade, whatever became of it; for an old base whose
    policy is off; and without an adapter that the pusher may move.
    """
    with reg.db.read() as session:
        revision = session.get(Revision, revision_id)
        author = None if revision is None else revision.author_id
        user = None if author is None else session.get(User, author)
        if revision is None or user is None or not _is_full_model(session, revision):
            return []
        caller = Caller(user.id, user.name, user.is_admin, "write")
        pairs = _told_by_cards(session, caller, revision)
        known = {(old.id, new.id) for old, new, _ in pairs}
        repository = session.get_one(Repository, revision.repository_id)
        older = _older(session, repository) if is_base(repository, revision) else []
    for each in older:
        if (each.id, revision.id) in known:
            continue
        found = likeness(reg, reader, each.id, revision.id)
        if found is not None and found.is_version:
            pairs.append((each, revision, "weights"))
    with reg.db.read() as session:
        return [
            proposal for pair in pairs if (proposal := _proposal(session, caller, pair)) is not None
        ]


def _is_full_model(session: ReadSession, revision: Revision) -> bool:
    repository = session.get_one(Repository, revision.repository_id)
    is_head = repository.head_id == revision.id
    is_made = repository.role in ("adapter", "merge", "export")
    return is_head and not is_made and not entries_at(session, revision, [CONFIG])


def _told_by_cards(session: ReadSession, caller: Caller, revision: Revision) -> list[_Pair]:
    """Pairs that the card of this model names, or that of an older base of its namespace."""
    repository = session.get_one(Repository, revision.repository_id)
    pairs: list[_Pair] = []
    facts = load_facts(session, [revision.id], with_files=True).get(revision.id)
    card = {} if facts is None or facts.card is None else facts.card
    newer = newer_in_card(card)
    if newer is not None:
        found = resolve_declared(session, caller, newer)
        pairs += [] if found is None else [(revision, found, "card")]
    if card.get("base_model_relation") == UPGRADE:
        for base in bases_in_card(card)[:1]:
            found = resolve_declared(session, caller, model_name(base))
            pairs += [] if found is None else [(found, revision, "card")]
    name = full_name(session, repository)
    older = {each.id: each for each in _older(session, repository)}
    for row, each in load_facts(session, older, with_files=True).items():
        if each.card is not None and newer_in_card(each.card) == name:
            pairs.append((older[row], revision, "card"))
    return pairs


def _older(session: ReadSession, repository: Repository) -> list[Revision]:
    """Heads of the older bases of a model's namespace that have adapters, the newest first."""
    child, base = aliased(Revision), aliased(Revision)
    has_child = exists(
        select(child.id)
        .join(base, base.id == child.declared_base_revision_id)
        .where(base.repository_id == Repository.id, child.repository_id != Repository.id)
    )
    query = (
        select(Revision)
        .join(Repository, Repository.head_id == Revision.id)
        .where(
            Repository.namespace_id == repository.namespace_id,
            Repository.id < repository.id,
            has_child,
        )
        .order_by(Repository.id.desc())
        .limit(_MOST_OLDER)
    )
    return list(session.scalars(query))


def _proposal(session: ReadSession, caller: Caller, pair: _Pair) -> Proposal | None:
    old, new, source = pair
    if old.repository_id == new.repository_id or find_pair(session, old, new) is not None:
        return None
    if any(not _is_full_model(session, each) for each in (old, new)):
        return None
    if any(not has_weights(session, each.id) for each in (old, new)):
        return None
    old_repository, new_repository = (
        session.get_one(Repository, each.repository_id) for each in (old, new)
    )
    policy = policy_in_force(session, old_repository).policy
    if policy == OFF or not has_adapter(session, caller, old, new):
        return None
    return Proposal(
        caller,
        f"{full_name(session, old_repository)}@{old.commit}",
        f"{full_name(session, new_repository)}@{new.commit}",
        source,
        AUTO if policy == AUTO and source == "card" else ASK,
    )

"""The bases of a page of models, as far as its caller may know of them, in a few queries."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select, tuple_

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import readable_repositories
from deltahub.registry.catalog.declared_base import DeclaredBase, resolve_declared
from deltahub.registry.catalog.lists.model_tags import MIN_BASE_SHARE
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import LineageEdge, Namespace, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import InvalidName
from deltahub.registry.names import split_name


@dataclass(frozen=True)
class ShownBases:
    """The bases of a revision that its caller may read.

    declared: the declared base, if it is a model of this hub. measured: current names of the models
    that give at least MIN_BASE_SHARE of the revision's weights, the largest share first: their
    tensors are in the revision, or are bases of its deltas.
    """

    declared: DeclaredBase | None = None
    measured: tuple[str, ...] = ()


def shown_bases(
    session: ReadSession, caller: Caller | None, revisions: Iterable[Revision]
) -> dict[int, ShownBases]:
    """Revision id -> its bases, for each of the revisions."""
    heads = list(revisions)
    edges = _measured_edges(session, [each.id for each in heads])
    resolved = {
        each.declared_base_revision_id
        for each in heads
        if each.declared_base_revision_id is not None
    }
    parents = {parent for each in edges.values() for parent in each}
    known = _readable(session, caller, resolved | parents)
    by_name = _exist(
        session,
        caller,
        {
            each.declared_base
            for each in heads
            if each.declared_base is not None and each.declared_base_revision_id is None
        },
    )
    return {
        each.id: ShownBases(
            _declared(each, known, by_name),
            tuple(known[parent][1] for parent in edges.get(each.id, ()) if parent in known),
        )
        for each in heads
    }


def _declared(
    revision: Revision, known: Mapping[int, tuple[Revision, str]], by_name: Collection[str]
) -> DeclaredBase | None:
    if revision.declared_base is None:
        return None
    declared_name, at, rest = revision.declared_base.partition("@")
    if revision.declared_base_revision_id is None:
        # A base that came after this revision is found by its name, until it is ingested.
        if revision.declared_base not in by_name:
            return None
        return DeclaredBase(declared_name, declared_name, at + rest, None)
    found = known.get(revision.declared_base_revision_id)
    # A caller who may not read the base must not learn its current name.
    return None if found is None else DeclaredBase(declared_name, found[1], at + rest, found[0])


def _measured_edges(session: ReadSession, revisions: Sequence[int]) -> dict[int, list[int]]:
    """Child -> parents of large share, the largest first."""
    found: dict[int, list[int]] = {}
    for batch in batches(revisions):
        query = select(LineageEdge.child_id, LineageEdge.parent_id).where(
            LineageEdge.child_id.in_(batch),
            LineageEdge.origin == "measured",
            LineageEdge.share >= MIN_BASE_SHARE,
        )
        for child, parent in session.execute(query.order_by(LineageEdge.share.desc())):
            found.setdefault(child, []).append(parent)
    return found


def _readable(
    session: ReadSession, caller: Caller | None, revisions: Collection[int]
) -> dict[int, tuple[Revision, str]]:
    """Revision id -> (revision, current name of its model), of those that the caller may read."""
    found: dict[int, tuple[Revision, str]] = {}
    for batch in batches(sorted(revisions)):
        query = (
            select(Revision, Repository.name, Namespace.name)
            .join(Repository, Repository.id == Revision.repository_id)
            .join(Namespace, Namespace.id == Repository.namespace_id)
            .where(Revision.id.in_(batch), readable_repositories(caller))
        )
        for revision, name, namespace in session.execute(query):
            found[revision.id] = (revision, f"{namespace}/{name}")
    return found


def _exist(session: ReadSession, caller: Caller | None, declared: Collection[str]) -> set[str]:
    """The declared bases that name a model with a head, or a revision, that the caller may read."""
    found: set[str] = set()
    names: dict[tuple[str, str], str] = {}
    for text in declared:
        if "@" in text:
            if resolve_declared(session, caller, text) is not None:
                found.add(text)
            continue
        try:
            names[split_name(text)] = text
        except InvalidName:
            continue
    for batch in batches(sorted(names)):
        query = (
            select(Namespace.name, Repository.name)
            .join(Namespace, Namespace.id == Repository.namespace_id)
            .where(
                tuple_(Namespace.name, Repository.name).in_(batch),
                Repository.head_id != 0,
                readable_repositories(caller),
            )
        )
        found.update(names[namespace, name] for namespace, name in session.execute(query))
    return found

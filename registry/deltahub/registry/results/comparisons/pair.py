"""Two revisions that are compared, and the key that names their weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from sqlalchemy import and_, or_, select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed, full_name
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.catalog.declared_base import find_declared, resolve_declared
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.catalog.weights import is_safetensors
from deltahub.registry.db.models import File, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.errors import RevisionNotFound

# Digits of a commit that name it for people.
SHOWN: Final = 12


@dataclass(frozen=True)
class Side:
    """One of the two. name: `namespace/name`."""

    name: str
    commit: str
    revision_id: int


@dataclass(frozen=True)
class Pair:
    """key: None while weights of one of them wait for their ingest, or if one has none."""

    first: Side
    second: Side
    key: str | None


def resolve_pair(session: ReadSession, caller: Caller | None, first: str, second: str) -> Pair:
    """first, second: `namespace/name[@revision]`. RepositoryNotFound, RevisionNotFound."""
    rows = []
    for text in (first, second):
        name, _, revision = text.partition("@")
        repository = load_repository(session, caller, name)
        rows.append(resolve_revision(session, repository, revision or DEFAULT_BRANCH))
    return pair_of(session, rows)


def usual_pair(session: ReadSession, caller: Caller | None, name: str) -> tuple[str, str] | None:
    """What a model is mostly compared with: (its declared base, its main), or else the commit
    before, or itself; None if it has no commit. RepositoryNotFound.
    """
    repository = load_repository(session, caller, name)
    try:
        head = resolve_revision(session, repository, DEFAULT_BRANCH)
    except RevisionNotFound:
        return None
    own = f"{name}@{DEFAULT_BRANCH}"
    declared = find_declared(session, caller, head)
    base = None if declared is None else declared.revision
    if base is None and declared is not None:
        base = resolve_declared(session, caller, declared.text)
    if declared is not None and base is not None:
        return declared.text if declared.at else f"{declared.name}@{base.commit[:SHOWN]}", own
    parent = select(Revision.commit).where(
        Revision.repository_id == repository.id, Revision.commit == head.parent_commit
    )
    before = session.scalar(parent)
    return own if before is None else f"{name}@{before[:SHOWN]}", own


def pair_of(session: ReadSession, revisions: Sequence[Revision]) -> Pair:
    """The pair of these two rows."""
    repositories = [session.get_one(Repository, each.repository_id) for each in revisions]
    first, second = (
        Side(full_name(session, repository), revision.commit, revision.id)
        for repository, revision in zip(repositories, revisions, strict=True)
    )
    weights = [_weights(session, revision.id) for revision in revisions]
    if not all(weights):
        return Pair(first, second, None)
    # Equal weights in two domains are two keys: whoever reads one domain learns nothing of another.
    texts = [f"{each.domain_id}:{w}" for each, w in zip(repositories, weights, strict=True)]
    return Pair(first, second, sha256("|".join(texts).encode()).hexdigest())


def may_read(session: ReadSession, caller: Caller | None, revision_ids: Sequence[int]) -> bool:
    """Whether the caller may read all of these revisions."""
    revisions = [session.get_one(Revision, row) for row in revision_ids]
    repositories = [session.get_one(Repository, each.repository_id) for each in revisions]
    return all(allowed(session, caller, "read", each) for each in repositories)


def _weights(session: ReadSession, revision_id: int) -> str | None:
    """The SHA-256 of each safetensors file; None if one is not ingested, or there are none."""
    is_coming = and_(File.state != "ingested", Entry.path.endswith(".safetensors"))
    query = (
        select(File.sha256, File.state)
        .join(Entry, Entry.file_id == File.id)
        .where(Entry.revision_id == revision_id, or_(is_safetensors(), is_coming))
        .distinct()
        .order_by(File.sha256)
    )
    found = session.execute(query).all()
    if any(state != "ingested" for _, state in found):
        return None
    return ",".join(digest for digest, _ in found) or None

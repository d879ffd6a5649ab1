"""Two revisions that are compared, and the key that names their weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from sqlalchemy import and_, or_, select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed, full_name
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.catalog.weights import is_safetensors
from deltahub.registry.db.models import File, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry


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

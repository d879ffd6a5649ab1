"""Keys of objects: `name/path` of a file at main, `name@revision/path` of one elsewhere.

A revision may be written with its slashes, as in `name@dev/x/config.json`: of the revisions that
the beginning of a key may name, the shortest that there is counts. With %2F in place of its
slashes it cannot be mistaken.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, Select, exists, or_, select, true

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import readable_repositories
from deltahub.registry.access.repositories import (
    DEFAULT_BRANCH,
    find_namespace,
    load_repository,
)
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.db.expressions import by_code_point
from deltahub.registry.db.models import Membership, Namespace, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import (
    InvalidName,
    NotFound,
    RepositoryMoved,
    RevisionNotFound,
)
from deltahub.registry.names import is_name, quoted

_HEAD: Final = "HEAD"
# Parts between slashes of the longest revision that a key is searched for.
_MOST_PARTS: Final = 8


class BucketNotFound(NotFound):
    """There is no such namespace, or none of its models may be read by the caller."""


@dataclass(frozen=True)
class Bucket:
    """A namespace. created_at: of the oldest model that the caller may read; None without one."""

    name: str
    created_at: datetime | None


@dataclass(frozen=True)
class Folder:
    """A revision whose files have keys that begin alike.

    prefix: how they begin, in the caller's spelling, with a slash at the end. asked: the revision
    as the caller names it.
    """

    prefix: str
    asked: str
    repository: Repository
    revision: Revision


def find_bucket(session: ReadSession, caller: Caller | None, name: str) -> Namespace:
    """The namespace of a bucket's name, whatever its case; BucketNotFound."""
    found = find_namespace(session, name) if is_name(name) else None
    if found is not None:
        seen = select(Namespace.id).where(Namespace.id == found.id, _is_visible(caller))
        if session.scalar(seen) is not None:
            return found
    raise BucketNotFound(
        f"there is no bucket {quoted(name)}, or you may read no model in it: a bucket is a user or"
        " an organization of the hub"
    )


def list_buckets(
    session: ReadSession, caller: Caller | None, prefix: str, after: str, limit: int
) -> list[Bucket]:
    """The first buckets after a name that the caller may read from, or is a member of."""
    name = by_code_point(Namespace.name + "")
    oldest = (
        _readable(caller)
        .with_only_columns(Repository.created_at)
        .order_by(Repository.id)
        .limit(1)
        .scalar_subquery()
    )
    query = (
        select(Namespace.name, oldest)
        .where(_is_visible(caller), name > after, name >= prefix, name < after_all(prefix))
        .order_by(name)
        .limit(limit)
    )
    return [Bucket(*row) for row in session.execute(query)]


def find_folder(session: ReadSession, caller: Caller | None, bucket: str, key: str) -> Folder:
    """The revision that the beginning of a key, or all of it, names.

    RepositoryNotFound, RevisionNotFound, InvalidName. A former name of a repository leads to it:
    a client of S3 signs the path that it asks for, and so cannot follow a redirect.
    """
    if "\0" in key:
        raise InvalidName("a key has no NUL in it")  # a database cannot even be asked for it
    parts = key.split("/")
    name, at, first = parts[0].partition("@")
    full_name = f"{bucket}/{name}"
    try:
        repository = load_repository(session, caller, full_name)
    except RepositoryMoved as moved:
        repository = load_repository(session, caller, moved.new_name)
    if not at:
        main = resolve_revision(session, repository, DEFAULT_BRANCH)
        return Folder(f"{parts[0]}/", DEFAULT_BRANCH, repository, main)
    for n_parts in range(1, min(len(parts), _MOST_PARTS) + 1):
        spelt = "/".join([first, *parts[1:n_parts]])
        asked = spelt.replace("%2F", "/").replace("%2f", "/")
        asked = DEFAULT_BRANCH if asked == _HEAD else asked
        try:
            revision = resolve_revision(session, repository, asked)
        except (RevisionNotFound, InvalidName):
            continue
        return Folder(f"{name}@{spelt}/", asked, repository, revision)
    raise RevisionNotFound(
        f"{full_name} has no branch, tag or commit with which {quoted(key[len(name) + 1 :])} begins"
    )


def after_all(prefix: str) -> str:
    """A string that sorts after all names that begin with a prefix: names are ASCII."""
    return prefix + "\x7f"


def _is_visible(caller: Caller | None) -> ColumnElement[bool]:
    """SQL condition on Namespace: the caller may read a model in it, or is a member."""
    if caller is not None and caller.is_superuser:
        return true()
    readable = exists(_readable(caller))
    if caller is None:
        return readable
    own = select(Membership.namespace_id).where(Membership.user_id == caller.user_id)
    return or_(readable, Namespace.id.in_(own))


def _readable(caller: Caller | None) -> Select[int]:
    """The repositories of a namespace, for a query of Namespace, that the caller may read."""
    return select(Repository.id).where(
        Repository.namespace_id == Namespace.id, readable_repositories(caller)
    )

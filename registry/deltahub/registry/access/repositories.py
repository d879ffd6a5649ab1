"""Finds a repository and checks that the caller may do an action on it.

Names are found whatever their case. A hub that an older release wrote may have names that differ
only in case: each of them is found by its exact spelling alone.
"""

from collections.abc import Collection

from sqlalchemy import and_, select

from deltahub.registry.access.caller import Action, Caller
from deltahub.registry.access.permissions import (
    allowed,
    full_name,
    repository_not_found,
    require,
)
from deltahub.registry.db.expressions import ascii_lower
from deltahub.registry.db.models import (
    PUBLIC_DOMAIN_KEY,
    Domain,
    Namespace,
    OldName,
    Repository,
)
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.errors import RepositoryMoved
from deltahub.registry.names import is_name, split_name, validate_name

DEFAULT_BRANCH = "main"


def load_repository(
    session: ReadSession, caller: Caller | None, name: str, action: Action = "read"
) -> Repository:
    """The row, if the caller may do the action; RepositoryNotFound, Unauthorized, Forbidden.

    RepositoryMoved for a former name of a repository that the caller may read.
    """
    repository = find_repository(session, name)
    if repository is None:
        new = _renamed(session, name)
        if new is not None and allowed(session, caller, "read", new):
            raise RepositoryMoved(name, full_name(session, new))
    if repository is None or not allowed(session, caller, "read", repository):
        # The name as the caller wrote it: how a private one is spelt is nobody's business.
        raise repository_not_found(name)
    require(session, caller, action, repository)
    return repository


def domain_of(session: WriteSession, namespace_id: int, *, private: bool) -> Domain:
    """The domain that stores a repository's data. Creates the domain if it is absent."""
    key = f"namespace:{namespace_id}" if private else PUBLIC_DOMAIN_KEY
    domain = session.scalar(select(Domain).where(Domain.key == key))
    if domain is None:
        domain = Domain(key=key)
        session.add(domain)
        session.flush()
    return domain


def find_repository(session: ReadSession, name: str) -> Repository | None:
    """The row of this name, without a permission check; InvalidName."""
    namespace, short = split_name(name)
    rows = session.execute(
        select(Namespace.name, Repository)
        .outerjoin(
            Repository,
            and_(
                Repository.namespace_id == Namespace.id,
                ascii_lower(Repository.name) == short.lower(),
            ),
        )
        .where(ascii_lower(Namespace.name) == namespace.lower())
    ).all()
    spelt = _spelt(namespace, {each for each, _ in rows})
    found = {row.name: row for each, row in rows if each == spelt and row is not None}
    return found.get(_spelt(short, found) or "")


def find_namespace(session: ReadSession, name: str) -> Namespace | None:
    """The row of this name, of a user or an organization; InvalidName."""
    validate_name(name, "namespace")
    query = select(Namespace).where(ascii_lower(Namespace.name) == name.lower())
    found = {row.name: row for row in session.scalars(query)}
    return found.get(_spelt(name, found) or "")


def namespace_row(session: ReadSession, name: str) -> int | None:
    """The id of the namespace of this name; None if there is none, or can be none."""
    found = find_namespace(session, name) if is_name(name) else None
    return None if found is None else found.id


def _spelt(name: str, alike: Collection[str]) -> str | None:
    """The one of names that differ only in case that is meant; None if it cannot be told."""
    if name in alike:
        return name
    return next(iter(alike)) if len(alike) == 1 else None


def _renamed(session: ReadSession, name: str) -> Repository | None:
    """The repository that had this name."""
    namespace, short = split_name(name)
    row = find_namespace(session, namespace)
    if row is None:
        return None
    query = (
        select(Repository)
        .join(OldName, OldName.repository_id == Repository.id)
        .where(OldName.namespace_id == row.id, OldName.lower_name == short.lower())
    )
    return session.scalar(query)

"""Finds a repository and checks that the caller may do an action on it."""

from sqlalchemy import select

from deltahub.registry.access.caller import Action, Caller
from deltahub.registry.access.permissions import repository_not_found, require
from deltahub.registry.db.models import PUBLIC_DOMAIN_KEY, Domain, Namespace, Repository
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.names import split_name

DEFAULT_BRANCH = "main"


def load_repository(
    session: ReadSession, caller: Caller | None, name: str, action: Action = "read"
) -> Repository:
    """The row, if the caller may do the action; RepositoryNotFound, Unauthorized, Forbidden."""
    repository = find_repository(session, name)
    if repository is None:
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
    return session.scalar(
        select(Repository)
        .join(Namespace, Namespace.id == Repository.namespace_id)
        .where(Namespace.name == namespace, Repository.name == short)
    )

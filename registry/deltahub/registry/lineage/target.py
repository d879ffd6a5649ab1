"""The revision that looks for a base, and what it declares."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, or_
from sqlalchemy.orm import Session

from deltahub.registry.db.models import Namespace, Repository, Revision
from deltahub.registry.packs.locations import allowed_domains


@dataclass(frozen=True)
class Target:
    """The revision that looks for bases, and where its owner may look."""

    revision_id: int
    repository_id: int
    namespace_id: int
    domain_id: int
    domains: tuple[int, ...]
    name: str

    @classmethod
    def load(cls, session: Session, revision_id: int) -> "Target":
        revision = session.get_one(Revision, revision_id)
        repository = session.get_one(Repository, revision.repository_id)
        namespace = session.get_one(Namespace, repository.namespace_id)
        return cls(
            revision_id=revision_id,
            repository_id=repository.id,
            namespace_id=namespace.id,
            domain_id=repository.domain_id,
            domains=allowed_domains(session, repository.domain_id),
            name=f"{namespace.name}/{repository.name}",
        )


def declares(name: str) -> ColumnElement[bool]:
    """True for a revision that says its base is the repository `name`, at any revision."""
    base = Revision.declared_base
    # A range, which an index serves; LIKE is served by none in SQLite. "A" follows "@" in ASCII.
    return or_(base == name, and_(base >= f"{name}@", base < f"{name}A"))

"""The revision for which bases are searched, and a condition on declared bases."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, or_
from sqlalchemy.orm import Session

from deltahub.registry.db.models import Namespace, Repository, Revision
from deltahub.registry.packs.locations import allowed_domains


@dataclass(frozen=True)
class Target:
    """The revision for which bases are searched. domains: those that its owner may read."""

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


def declares(name: str, child: Any = Revision) -> ColumnElement[bool]:
    """True for a revision that declares the repository `name` as its base, at any revision.

    child: Revision, or an alias of it.
    """
    base = child.declared_base
    # A range can use the index; in SQLite LIKE cannot. "A" follows "@" in ASCII.
    return or_(base == name, and_(base >= f"{name}@", base < f"{name}A"))

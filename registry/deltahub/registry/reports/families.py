"""What the hub saves by families: a base with the models that were made from it."""

from dataclasses import dataclass

from sqlalchemy import exists, func, select
from sqlalchemy.orm import aliased

from deltahub.registry.catalog.lists.model_tags import MIN_BASE_SHARE
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import LineageEdge, Namespace, Repository, Revision
from deltahub.registry.db.tables.quotas import RepositoryUsage
from deltahub.registry.registry import Registry


@dataclass(frozen=True)
class Family:
    """A base and the models that are differences from it, or say so.

    logical_bytes: of all files of the base and of these models, as they were pushed; stored_bytes:
    what they take in the store.
    """

    base: str
    n_models: int  # without the base
    logical_bytes: int
    stored_bytes: int

    @property
    def saved_bytes(self) -> int:
        return self.logical_bytes - self.stored_bytes


def largest_families(reg: Registry, limit: int = 20) -> list[Family]:
    """The families that save most, the first first. Reads the edges of all heads: some seconds for
    a million models, so ask for it now and then.

    Merges belong to no family, because they have many bases.
    """
    child, parent, merged = aliased(Repository), aliased(Repository), aliased(LineageEdge)
    pairs = (
        select(parent.id.label("base_id"), child.id.label("model_id"))
        .select_from(LineageEdge)
        .join(child, child.head_id == LineageEdge.child_id)
        .join(Revision, Revision.id == LineageEdge.parent_id)
        .join(parent, parent.id == Revision.repository_id)
        .where(
            parent.id != child.id,
            (LineageEdge.origin == "declared") | (LineageEdge.share >= MIN_BASE_SHARE),
            ~exists().where(merged.child_id == child.head_id, merged.kind == "merge"),
        )
        .distinct()
        .subquery()
    )
    models = (
        select(
            pairs.c.base_id,
            func.count().label("n_models"),
            total(RepositoryUsage.logical_bytes).label("logical"),
            total(RepositoryUsage.stored_bytes).label("stored"),
        )
        .join(RepositoryUsage, RepositoryUsage.repository_id == pairs.c.model_id)
        .group_by(pairs.c.base_id)
        .subquery()
    )
    own = RepositoryUsage
    logical, stored = models.c.logical + own.logical_bytes, models.c.stored + own.stored_bytes
    query = (
        select(Namespace.name, Repository.name, models.c.n_models, logical, stored)
        .select_from(models)
        .join(Repository, Repository.id == models.c.base_id)
        .join(Namespace, Namespace.id == Repository.namespace_id)
        .join(own, own.repository_id == Repository.id)
        .order_by((logical - stored).desc(), Repository.id)
        .limit(limit)
    )
    with reg.db.read() as session:
        return [
            Family(f"{namespace}/{name}", n_models, n_logical, n_stored)
            for namespace, name, n_models, n_logical, n_stored in session.execute(query)
        ]

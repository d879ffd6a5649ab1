"""What lies in the store, and who uses it: namespaces, packs, findings and dropped revisions."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import func, select

from deltahub.registry.db.columns import UtcDateTime
from deltahub.registry.db.expressions import contains, total
from deltahub.registry.db.models import Domain, Namespace, Pack, Repository
from deltahub.registry.db.paging.keyset import Asked, Page, read_page
from deltahub.registry.db.tables.quotas import Quota, RepositoryUsage
from deltahub.registry.db.tables.retention import DroppedRevision
from deltahub.registry.db.tables.scrub import FoundDamage, PackCopy, Proof
from deltahub.registry.registry import Registry

_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
PACK_STATES: Final = ("live", "damaged", "condemned", "writing")


@dataclass(frozen=True)
class NamespaceRow:
    """What a namespace uses and may use. A limit of None: it has none. is_own: not the default."""

    name: str
    kind: str
    repositories: int
    stored_bytes: int
    logical_bytes: int
    limit_repositories: int | None
    limit_stored_bytes: int | None
    limit_logical_bytes: int | None
    is_own: bool

    @property
    def share(self) -> float | None:
        """Of the limit that is nearest; None without a limit."""
        pairs = (
            (self.repositories, self.limit_repositories),
            (self.stored_bytes, self.limit_stored_bytes),
            (self.logical_bytes, self.limit_logical_bytes),
        )
        found = [used / limit if limit else 1.0 for used, limit in pairs if limit is not None]
        return max(found, default=None)


@dataclass(frozen=True)
class PackRow:
    """domain: whose data it holds, `public` or `namespace:ID`. proved_at: when its bytes last were
    right; None: not since they were written.
    """

    id: str
    state: str
    domain: str
    size_bytes: int
    created_at: datetime
    proved_at: datetime | None
    has_copy: bool


@dataclass(frozen=True)
class FindingRow:
    """Damage of an object. files: some names of files that need it; n_files: of how many."""

    kind: str
    target: str
    code: str
    text: str
    state: str
    how: str | None
    files: tuple[str, ...]
    n_files: int
    found_at: datetime
    last_seen_at: datetime


@dataclass(frozen=True)
class DroppedRow:
    """A revision that can still be taken back, until its grace ends."""

    repository: str
    commit: str
    title: str
    reason: str
    dropped_by: str | None
    dropped_at: datetime


def list_namespaces(reg: Registry, asked: Asked, *, words: str = "") -> Page[NamespaceRow]:
    """Namespaces whose name contains `words`, with what they use. Sums the use of all of them."""
    used = (
        select(
            Repository.namespace_id,
            func.count().label("n"),
            total(RepositoryUsage.stored_bytes).label("stored"),
            total(RepositoryUsage.logical_bytes).label("logical"),
        )
        .outerjoin(RepositoryUsage, RepositoryUsage.repository_id == Repository.id)
        .group_by(Repository.namespace_id)
        .subquery()
    )
    n = func.coalesce(used.c.n, 0)
    stored, logical = func.coalesce(used.c.stored, 0), func.coalesce(used.c.logical, 0)
    query = (
        select(Namespace.name, Namespace.kind, n, stored, logical, Quota)
        .outerjoin(used, used.c.namespace_id == Namespace.id)
        .outerjoin(Quota, Quota.namespace_id == Namespace.id)
    )
    if words:
        query = query.where(contains(func.lower(Namespace.name), words.lower()))
    columns = {"name": Namespace.name, "stored": stored, "logical": logical, "repositories": n}
    hub = reg.settings
    default = (hub.quota_repositories, hub.quota_stored_bytes, hub.quota_logical_bytes)
    with reg.db.read() as session:
        page = read_page(session, query, columns, Namespace.id, asked)
        rows = []
        for name, kind, n_repositories, n_stored, n_logical, quota, *_ in page.items:
            own = default if quota is None else _limits(quota)
            rows.append(
                NamespaceRow(
                    name, kind, n_repositories, n_stored, n_logical, *own, is_own=quota is not None
                )
            )
    return Page(rows, page.after)


def _limits(quota: Quota) -> tuple[int | None, int | None, int | None]:
    return quota.repositories, quota.stored_bytes, quota.logical_bytes


def list_packs(reg: Registry, asked: Asked, *, state: str = "") -> Page[PackRow]:
    """Packs in this state, or in any."""
    proved = func.coalesce(Proof.proved_at, _NEVER, type_=UtcDateTime())
    query = (
        select(Pack, Domain.key, Proof.proved_at, PackCopy.state)
        .join(Domain, Domain.id == Pack.domain_id)
        .outerjoin(Proof, (Proof.kind == "pack") & (Proof.object_id == Pack.id))
        .outerjoin(PackCopy, PackCopy.pack_id == Pack.id)
        .where(Pack.state == state if state else Pack.state.in_(PACK_STATES))
    )
    columns = {"created": Pack.created_at, "size": Pack.size, "proved": proved}
    with reg.db.read() as session:
        page = read_page(session, query, columns, Pack.id, asked)
        rows = [
            PackRow(p.id, p.state, domain, p.size, p.created_at, proved_at, copy == "live")
            for p, domain, proved_at, copy, *_ in page.items
        ]
    return Page(rows, page.after)


def list_findings(
    reg: Registry, asked: Asked, *, state: str = "open", kind: str = ""
) -> Page[FindingRow]:
    """Findings of scrub, fsck and reads. state: open, repaired, gone, or empty for all."""
    query = select(FoundDamage)
    if state:
        query = query.where(FoundDamage.state == state)
    if kind:
        query = query.where(FoundDamage.kind == kind)
    columns = {"found": FoundDamage.found_at, "seen": FoundDamage.last_seen_at}
    key = FoundDamage.kind + "/" + FoundDamage.object_id + "/" + FoundDamage.code
    with reg.db.read() as session:
        page = read_page(session, query, columns, key, asked)
        rows = [
            FindingRow(
                each.kind, each.object_id, each.code, each.text, each.state, each.how,
                tuple(each.affected["names"]), each.affected["n_names"],
                each.found_at, each.last_seen_at,
            )
            for each, *_ in page.items
        ]  # fmt: skip
    return Page(rows, page.after)


def list_all_dropped(reg: Registry, asked: Asked, *, reason: str = "") -> Page[DroppedRow]:
    """Dropped revisions of all repositories."""
    query = (
        select(DroppedRevision, Namespace.name, Repository.name)
        .join(Repository, Repository.id == DroppedRevision.repository_id)
        .join(Namespace, Namespace.id == Repository.namespace_id)
    )
    if reason:
        query = query.where(DroppedRevision.reason == reason)
    columns = {"dropped": DroppedRevision.dropped_at}
    with reg.db.read() as session:
        page = read_page(session, query, columns, DroppedRevision.id, asked)
        rows = [
            DroppedRow(
                f"{namespace}/{name}", d.commit, d.message.partition("\n")[0][:200], d.reason,
                d.dropped_by, d.dropped_at,
            )
            for d, namespace, name, *_ in page.items
        ]  # fmt: skip
    return Page(rows, page.after)

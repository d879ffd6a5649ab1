"""What jobs have found out about pairs of models and adapters, and what they do with adapters: they
convert them, and move them to a newer base.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, Id, UtcDateTime, utc_now


class Comparison(Base):
    """A report on two revisions. It goes with either of them.

    key: names the weights of both and the domains that hold them, so that equal weights share a
    report where the same people may read them. totals, tensors: JSON, compressed by Zstandard.
    """

    __tablename__ = "comparisons"
    __table_args__ = (Index("ix_comparisons_used", "used_at", "id"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # random hex
    key: Mapped[str] = mapped_column(String(64), unique=True)
    first_id: Mapped[int] = mapped_column(
        ForeignKey("revisions.id", ondelete="CASCADE"), index=True
    )
    second_id: Mapped[int] = mapped_column(
        ForeignKey("revisions.id", ondelete="CASCADE"), index=True
    )
    totals: Mapped[bytes] = mapped_column(LargeBinary)
    tensors: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
    size: Mapped[int] = mapped_column(BigInteger)  # of all its bytes, with those of its parts
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    used_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)  # to an hour


class ComparisonPart(Base):
    """Histograms and heat maps of some tensors of a comparison: JSON, compressed by Zstandard."""

    __tablename__ = "comparison_parts"
    comparison_id: Mapped[str] = mapped_column(
        ForeignKey("comparisons.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class AdapterReportRow(Base):
    """The report on the adapter of a revision (registry/adapters/reports.py)."""

    __tablename__ = "adapter_reports"
    revision_id: Mapped[int] = mapped_column(
        ForeignKey("revisions.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    state: Mapped[str] = mapped_column(String(16))  # plain|convertible|quarantined|broken
    report: Mapped[dict[str, Any]] = mapped_column(JSON)


class ConversionRule(Base):
    """Whether adapters are converted by themselves, of one repository or of a namespace.

    Exactly one of namespace_id and repository_id is set.
    """

    __tablename__ = "conversion_rules"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[int | None] = mapped_column(
        ForeignKey("namespaces.id", ondelete="CASCADE"), unique=True
    )
    repository_id: Mapped[int | None] = mapped_column(
        ForeignKey("repositories.id", ondelete="CASCADE"), unique=True
    )
    convert: Mapped[str] = mapped_column(String(8))  # ask|auto|off


class AdapterKit(Base):
    """What a move of an adapter to another base needs: registry/adapters/kits.py. Private to the
    hub: no answer to anybody has `kit` or the parts.

    kit: kit.json. size: of the discriminator, in bytes, which its parts hold.
    """

    __tablename__ = "adapter_kits"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # random hex
    repository_id: Mapped[int] = mapped_column(
        ForeignKey("repositories.id", ondelete="CASCADE"), unique=True
    )
    # The base that the kit is for, which may be renamed meanwhile; None: deleted.
    base_revision_id: Mapped[int | None] = mapped_column(
        ForeignKey("revisions.id", ondelete="SET NULL"), index=True
    )
    kit: Mapped[dict[str, Any]] = mapped_column(JSON)
    adapter_sha256: Mapped[str] = mapped_column(String(64))
    discriminator_sha256: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)


class AdapterKitPart(Base):
    """A part of a kit's discriminator. All but the last one have the same size."""

    __tablename__ = "adapter_kit_parts"
    kit_id: Mapped[str] = mapped_column(
        ForeignKey("adapter_kits.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class PooledInputs(Base):
    """Inputs that one call of a new base made up from the seeds of a kit, for all adapters of its
    task (registry/adapters/pools.py). Private to the hub, like the kit, with which they go.

    seed: of the random numbers. device: cpu or cuda. made: {"inputs": their texts}. size: in bytes.
    """

    __tablename__ = "pooled_inputs"
    kit_id: Mapped[str] = mapped_column(
        ForeignKey("adapter_kits.id", ondelete="CASCADE"), primary_key=True
    )
    base_revision_id: Mapped[int] = mapped_column(
        ForeignKey("revisions.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    seed: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    device: Mapped[str] = mapped_column(String(8), primary_key=True)
    call: Mapped[int] = mapped_column(primary_key=True)
    made: Mapped[dict[str, Any]] = mapped_column(JSON)
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now, index=True)


class Upgrade(Base):
    """A base, and the newer base that its adapters move to (registry/upgrades). One for each pair.

    old_name, new_name, old_commit, new_commit: as they were when the plan was last made.
    """

    __tablename__ = "upgrades"
    __table_args__ = (
        UniqueConstraint("old_repository_id", "new_repository_id"),
        Index("ix_upgrades_state", "state", "id"),
    )
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    old_repository_id: Mapped[int | None] = mapped_column(
        ForeignKey("repositories.id", ondelete="SET NULL")
    )
    new_repository_id: Mapped[int | None] = mapped_column(
        ForeignKey("repositories.id", ondelete="SET NULL"), index=True
    )
    old_name: Mapped[str] = mapped_column(String(200))
    new_name: Mapped[str] = mapped_column(String(200))
    old_commit: Mapped[str] = mapped_column(String(40))
    new_commit: Mapped[str] = mapped_column(String(40))
    source: Mapped[str] = mapped_column(String(8))  # asked|card|weights
    policy: Mapped[str] = mapped_column(String(8))  # auto|ask, of the last plan
    state: Mapped[str] = mapped_column(String(12))  # proposed|running|done|put_back|rejected
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)


class UpgradedAdapter(Base):
    """An adapter in the plan of an upgrade, and what became of it.

    namespace_id: where its result goes. plan: of this move (upgrades/plans.py). arguments: of its
    job. key: the job's idempotency key, another one for each try. user_id, scope: who approved it,
    and of which token; later who put it back. outcome: of the job's result. why: it failed, was
    kept, or is where it is. deletion_id: the job that deletes the result of one put back.
    waits_for_id: the repository of the adapter whose move makes inputs up for this one, too.
    """

    __tablename__ = "upgraded_adapters"
    __table_args__ = (
        UniqueConstraint("upgrade_id", "adapter_repository_id"),
        Index("ix_upgraded_adapters_state", "state", "id"),
    )
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    upgrade_id: Mapped[int] = mapped_column(ForeignKey("upgrades.id", ondelete="CASCADE"))
    adapter_repository_id: Mapped[int | None] = mapped_column(
        ForeignKey("repositories.id", ondelete="SET NULL"), index=True
    )
    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"))
    adapter_name: Mapped[str] = mapped_column(String(200))
    adapter_commit: Mapped[str] = mapped_column(String(40))
    # proposed|approved|rejected|running|published|kept|failed|put_back
    state: Mapped[str] = mapped_column(String(12))
    plan: Mapped[dict[str, Any]] = mapped_column(JSON)
    arguments: Mapped[dict[str, Any]] = mapped_column(JSON)
    key: Mapped[str | None] = mapped_column(String(64))
    job_id: Mapped[str | None] = mapped_column(String(32), index=True)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    scope: Mapped[str] = mapped_column(String(16), default="write")
    result_repository_id: Mapped[int | None] = mapped_column(
        ForeignKey("repositories.id", ondelete="SET NULL"), index=True
    )
    result_name: Mapped[str | None] = mapped_column(String(200))
    result_commit: Mapped[str | None] = mapped_column(String(40))
    deletion_id: Mapped[str | None] = mapped_column(String(32), index=True)
    waits_for_id: Mapped[int | None] = mapped_column(Id)
    outcome: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    why: Mapped[str | None] = mapped_column(Text)
    changed_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)


class UpgradeRule(Base):
    """Whether upgrades are proposed and begun by themselves, of one base or of a namespace's bases.

    Exactly one of namespace_id and repository_id is set.
    """

    __tablename__ = "upgrade_rules"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[int | None] = mapped_column(
        ForeignKey("namespaces.id", ondelete="CASCADE"), unique=True
    )
    repository_id: Mapped[int | None] = mapped_column(
        ForeignKey("repositories.id", ondelete="CASCADE"), unique=True
    )
    policy: Mapped[str] = mapped_column(String(8))  # ask|auto|off

"""Where the hub's objects lie, and which of them must not be deleted now."""

from datetime import datetime

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, UtcDateTime, utc_now


class ObjectStore(Base):
    """A store of this hub. The one in state `current` holds the objects; see stores/current.py."""

    __tablename__ = "object_stores"
    # Random hex, which the store holds, too: a store with another one belongs to another hub.
    mark: Mapped[str] = mapped_column(String(32), primary_key=True)
    url: Mapped[str] = mapped_column(Text)  # "" is the folder `objects` of the data folder
    state: Mapped[str] = mapped_column(String(8))  # current | previous | target | left
    changed_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)


class HubIdentity(Base):
    """The hub's name for its backups, one row. A restored hub gets another: see docs/backup.md."""

    __tablename__ = "hub_identity"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # random hex


class DeletionHold(Base):
    """Until it expires, no object is deleted: the deletion is deferred instead."""

    __tablename__ = "deletion_holds"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # random hex
    purpose: Mapped[str] = mapped_column(String(40))  # the command that holds
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


class DeferredDeletion(Base):
    """An object to delete when no hold is left. A new object of that key takes the row away."""

    __tablename__ = "deferred_deletions"
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    deferred_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)

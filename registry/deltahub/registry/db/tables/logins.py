"""How people log in with a browser."""

from datetime import datetime

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base, Id, UtcDateTime, utc_now


class WebSession(Base):
    """A browser that a user logged in with. The hub keeps only the SHA-256 of its secret."""

    __tablename__ = "web_sessions"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    # A token that began it limits what it may do, and ends it.
    token_id: Mapped[int | None] = mapped_column(
        ForeignKey("tokens.id", ondelete="CASCADE"), index=True
    )
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    agent: Mapped[str] = mapped_column(String(300))  # what the browser calls itself
    address: Mapped[str] = mapped_column(String(64))  # from which it logged in
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)  # to a few minutes
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Password(Base):
    """A user's password, as Argon2id of it; and the attempts that failed since it last worked."""

    __tablename__ = "passwords"
    user_id: Mapped[int] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), primary_key=True
    )
    hash: Mapped[str] = mapped_column(String(200))
    changed_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    n_failures: Mapped[int] = mapped_column(default=0)
    failed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Invitation(Base):
    """A link by which a user sets a password, once."""

    __tablename__ = "invitations"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Identity(Base):
    """A user as a provider of OpenID Connect knows them."""

    __tablename__ = "identities"
    issuer: Mapped[str] = mapped_column(String(300), primary_key=True)
    subject: Mapped[str] = mapped_column(String(300), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)

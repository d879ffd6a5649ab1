"""The base of all tables, and types of columns that SQLite and PostgreSQL store alike."""

from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import BigInteger, DateTime, Index, Integer, MetaData, String, TypeDecorator, text
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase

# SQLite increments ids automatically only for the type INTEGER; PostgreSQL needs 64 bits.
Id = BigInteger().with_variant(Integer, "sqlite")
# A path, compared by code point as in Python, whatever the collation of the database.
PathText = String(1024).with_variant(String(1024, collation="C"), "postgresql")


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC. SQLite drops the time zone, so reading adds it again."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or value.tzinfo is not None:
            return value
        return value.replace(tzinfo=UTC)


# Dates further in the future than this were not written by a clock that agrees with this one.
CLOCK_SLACK: Final = timedelta(minutes=5)


def utc_now() -> datetime:
    return datetime.now(UTC)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_N_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


def partial_index(name: str, column: str, condition: str) -> Index:
    """An index of the rows that fulfil the condition."""
    return Index(name, column, sqlite_where=text(condition), postgresql_where=text(condition))

"""Damage is called damage, a full disk full, a lock a lock; a fault of the SQL stays what it is."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.orm import InstrumentedAttribute

from deltahub.registry import Registry
from deltahub.registry.db.failures import database_errors_translated, is_damaged
from deltahub.registry.db.models import Frame, Pack, Sketch, Tensor, User
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import DataLost, RegistryError, Unavailable
from support.registry.opened import caller, opened_registry, push

# (a value as SQL, the column that holds it)
UNDECODABLE = [
    ("'{\"file_id\": '", Job.payload),
    ("'[1]'", Job.payload),
    ("x'ff00'", Job.payload),
    ("7", Job.result),
    ("'2026-13-77 00:00:00'", User.created_at),
    ("'soon'", Job.finished_at),
    ("5", User.created_at),
    ("x'00'", User.created_at),
    ("CAST(x'ff41' AS TEXT)", User.name),
    ("x'ff41'", User.name),
    ("'yes'", User.is_admin),
    ("'many'", Tensor.size),
    ("0.5", Frame.length),
    ("'text'", Tensor.hash),
    ("3", Sketch.positions),
]


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        push(registry, caller(registry, "ann"), "ann/model", {"a.txt": b"1"})
        yield registry


@pytest.mark.parametrize(("value", "column"), UNDECODABLE, ids=str)
def test_a_row_that_cannot_be_decoded_is_damage(
    reg: Registry, value: str, column: InstrumentedAttribute[Any]
) -> None:
    with reg.db.write() as session:
        session.add_all(
            [
                Job(id="1" * 32, kind="ingest", payload={}, state="done"),
                Pack(id="2" * 32, domain_id=1, state="live"),
                Tensor(id=1, domain_id=1, hash=bytes(32), size=1),
            ]
        )
        session.flush()
        session.add(
            Frame(tensor_id=1, start=0, size=1, pack_id="2" * 32, offset=0, length=1, codec=0)
        )
        session.add(Sketch(tensor_id=1, band=0, value=0, shape_class="1"))
    table = column.class_.__tablename__
    with reg.db.write() as session:
        change = text(f"UPDATE {table} SET {column.key} = {value}".replace(":", "\\:"))
        session.execute(change)
    with (
        pytest.raises(DataLost, match=r"damaged.*fsck") as raised,
        reg.db.read() as session,
    ):
        assert session.execute(select(column)).all() == []
    assert "A" not in str(raised.value).partition("where:")[2], "guests may not see the value"


def test_a_file_that_is_no_database_is_damaged_for_every_way_to_open_it(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    path.write_bytes(b"this is no database " * 500)

    def by_the_driver() -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")

    def by_an_engine() -> None:
        engine = create_engine(f"sqlite:///{path}")
        try:
            with engine.connect() as connection:
                connection.execute(text("SELECT * FROM sqlite_master"))
        finally:
            engine.dispose()

    for read in (by_the_driver, by_an_engine):
        with pytest.raises((sqlite3.Error, DatabaseError)) as plain:
            read()
        assert is_damaged(plain.value)
        with pytest.raises(DataLost, match="damaged"), database_errors_translated(tmp_path):
            read()


def test_a_page_that_changed_is_damage_and_not_an_outage(reg: Registry) -> None:
    path = reg.data_dir / "deltahub.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'users'")
        page = root.fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    reg.db.close()  # or its cache would hide the change
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 100)
    with pytest.raises(DataLost, match="malformed"), reg.db.read() as session:
        session.scalars(select(User)).all()


def test_a_lock_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with (
            closing(sqlite3.connect(path, timeout=0)) as other,
            pytest.raises(Unavailable, match="locked"),
            database_errors_translated(),
        ):
            other.execute("SELECT * FROM sqlite_master")


def test_a_file_that_cannot_be_opened_is_unreachable(tmp_path: Path) -> None:
    with (
        pytest.raises(Unavailable, match="cannot be reached"),
        database_errors_translated(tmp_path),
    ):
        sqlite3.connect(tmp_path)  # a folder


def test_a_fault_of_the_sql_is_not_disguised(reg: Registry) -> None:
    with pytest.raises(OperationalError, match="no such table") as raised, reg.db.read() as session:
        session.execute(text("SELECT * FROM nonsense"))
    assert not isinstance(raised.value, RegistryError)
    assert not is_damaged(raised.value)
    with pytest.raises(OperationalError, match="readonly"), reg.db.read() as session:
        session.execute(text("DELETE FROM users"))

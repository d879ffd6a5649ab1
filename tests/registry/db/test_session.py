"""Sessions: read sessions cannot write, write sessions queue, errors roll back."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, text, update
from sqlalchemy.exc import DatabaseError, OperationalError

from deltahub.registry.db.models import Base, Domain
from deltahub.registry.db.session import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/test.sqlite3")
    with database.write_engine.begin() as connection:
        Base.metadata.create_all(connection)
    yield database
    database.close()


def n_domains(database: Database) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(Domain)) or 0


def test_a_write_is_seen_by_the_next_read(database: Database) -> None:
    with database.write() as session:
        session.add(Domain(key="public"))
    assert n_domains(database) == 1


def test_an_error_rolls_everything_back(database: Database) -> None:
    def add_and_fail() -> None:
        with database.write() as session:
            session.add(Domain(key="public"))
            session.flush()
            raise RuntimeError("something went wrong")

    with pytest.raises(RuntimeError):
        add_and_fail()
    assert n_domains(database) == 0


def test_a_read_session_cannot_write_by_sql(database: Database) -> None:
    with database.read() as session, pytest.raises(DatabaseError, match="readonly"):
        session.execute(insert(Domain).values(key="public"))
    assert n_domains(database) == 0


def test_a_read_session_cannot_write_by_objects(database: Database) -> None:
    with pytest.raises(AssertionError, match="cannot write"), database.read() as session:
        session.add(Domain(key="public"))
    with database.write() as writing:
        writing.add(Domain(key="public"))
    with pytest.raises(AssertionError, match="cannot write"), database.read() as session:
        session.scalars(select(Domain)).one().key = "changed"


def test_a_read_session_sees_one_moment(database: Database) -> None:
    with database.read() as session:
        count = select(func.count()).select_from(Domain)
        assert session.scalar(count) == 0
        with database.write() as writing:
            writing.add(Domain(key="public"))
        assert session.scalar(count) == 0
    assert n_domains(database) == 1


def test_the_version_tells_of_commits_and_of_nothing_else(database: Database) -> None:
    before = database.version()
    assert before is not None
    n_domains(database)
    with database.write():
        pass
    assert database.version() == before
    seen = {before}
    for writer in (database, Database(database.url)):
        with writer.write() as session:
            session.add(Domain(key=f"domain {len(seen)}"))
        version = database.version()
        assert version is not None
        seen.add(version)
        assert database.version() == version
    writer.close()
    assert len(seen) == 3


def test_rows_stay_usable_after_the_session(database: Database) -> None:
    with database.write() as session:
        row = Domain(key="public")
        session.add(row)
    assert (row.id, row.key) == (1, "public")


def test_a_second_write_session_in_one_thread_is_a_bug_and_not_a_deadlock(
    database: Database,
) -> None:
    with database.write(), pytest.raises(AssertionError, match="open already"), database.write():
        pass
    with database.write() as session:  # the guard is gone again
        session.add(Domain(key="public"))


def test_a_committed_write_is_synced_and_references_are_checked(database: Database) -> None:
    with database.write() as session:
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
        assert session.scalar(text("PRAGMA synchronous")) == 2  # FULL
        assert session.scalar(text("PRAGMA foreign_keys")) == 1
        assert session.scalar(text("PRAGMA busy_timeout")) == 30000


INCREMENT = """
import sys
from sqlalchemy import select
from deltahub.registry.db.models import Domain
from deltahub.registry.db.session import Database
database = Database(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with database.write() as session:
        row = session.scalars(select(Domain)).one()
        row.key = str(int(row.key) + 1)
database.close()
"""


def test_threads_and_processes_that_read_then_write_lose_no_update(database: Database) -> None:
    with database.write() as session:
        session.add(Domain(key="0"))

    def increment() -> None:
        for _ in range(25):
            with database.write() as session:
                row = session.scalars(select(Domain)).one()
                row.key = str(int(row.key) + 1)

    threads = [threading.Thread(target=increment) for _ in range(4)]
    processes = [
        subprocess.Popen([sys.executable, "-c", INCREMENT, database.url, "25"]) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait(60) for process in processes] == [0, 0]
    with database.read() as reading:
        assert reading.scalars(select(Domain.key)).one() == "150"


def test_a_wrong_statement_is_not_disguised(database: Database) -> None:
    with pytest.raises(OperationalError, match="no such column"), database.write() as session:
        session.execute(update(Domain).values(key=text("nonsense")))

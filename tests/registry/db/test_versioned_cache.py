"""The cache returns a value until the next commit, and not longer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from deltahub.registry.db.models import Base, Domain
from deltahub.registry.db.session import Database
from deltahub.registry.db.versioned_cache import Memo


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/test.sqlite3")
    with database.write_engine.begin() as connection:
        Base.metadata.create_all(connection)
    yield database
    database.close()


def add_domain(database: Database, key: str) -> None:
    with database.write() as session:
        session.add(Domain(key=key))


class Counter:
    """Counts domains, and its own calls."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.times = 0

    def __call__(self) -> int:
        self.times += 1
        with self._database.read() as session:
            return session.scalar(select(func.count()).select_from(Domain)) or 0


def test_an_answer_is_given_again_until_something_is_committed(database: Database) -> None:
    memo: Memo[str, int] = Memo(database)
    count = Counter(database)
    assert [memo.get("n", count) for _ in range(3)] == [0, 0, 0]
    assert count.times == 1
    add_domain(database, "public")
    assert [memo.get("n", count) for _ in range(3)] == [1, 1, 1]
    assert count.times == 2


def test_what_another_process_commits_is_seen(database: Database) -> None:
    memo: Memo[str, int] = Memo(database)
    count = Counter(database)
    memo.get("n", count)
    other = Database(database.url)
    add_domain(other, "public")
    other.close()
    assert memo.get("n", count) == 1


def test_each_key_has_its_own_answer(database: Database) -> None:
    memo: Memo[int, str] = Memo(database)
    assert [memo.get(key, lambda key=key: f"<{key}>") for key in (1, 2, 1)] == ["<1>", "<2>", "<1>"]


def test_an_answer_from_before_a_commit_is_not_kept(database: Database) -> None:
    memo: Memo[str, int] = Memo(database)
    count = Counter(database)

    def slow() -> int:
        found = count()
        add_domain(database, "public")
        return found

    assert memo.get("n", slow) == 0
    assert memo.get("n", count) == 1


def test_a_refusal_is_not_kept(database: Database) -> None:
    memo: Memo[str, int] = Memo(database)

    def refuse() -> int:
        raise LookupError("not there")

    with pytest.raises(LookupError):
        memo.get("n", refuse)
    assert memo.get("n", lambda: 7) == 7


def test_an_answer_grows_no_older_than_it_may(database: Database) -> None:
    memo: Memo[str, int] = Memo(database, age_s=-1.0)
    count = Counter(database)
    assert [memo.get("n", count) for _ in range(3)] == [0, 0, 0]
    assert count.times == 3


def test_where_no_number_tells_of_commits_it_is_read_each_time(tmp_path: Path) -> None:
    nowhere = Database(f"sqlite:///{tmp_path}/absent/test.sqlite3")
    memo: Memo[str, int] = Memo(nowhere)
    answers = iter([1, 2])
    assert [memo.get("n", lambda: next(answers)) for _ in range(2)] == [1, 2]
    nowhere.close()

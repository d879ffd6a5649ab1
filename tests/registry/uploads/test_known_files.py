"""Which files need not be sent: those that a commit would accept, kept until it can follow."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, func, select, update

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.catalog.repositories import create_repository, delete_repository
from deltahub.registry.db.models import File, Hold, Landing, utc_now
from deltahub.registry.errors import (
    Forbidden,
    InvalidRequest,
    LimitExceeded,
    RepositoryNotFound,
    Unauthorized,
    UploadNotFound,
)
from deltahub.registry.uploads.known_files import query_and_keep
from support.registry.collecting import age_everything, collect, count, is_clean
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry, push, sha256_of, upload

DATA = b"the weights"
ADD = AddFile("copy.bin", sha256_of(DATA), len(DATA))


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path, max_operations=3) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


@pytest.fixture
def bob(reg: Registry) -> Caller:
    """A user with a public and a private repository."""
    bob = caller(reg, "bob", scope="write")
    create_repository(reg, bob, "bob/open")
    create_repository(reg, bob, "bob/closed", private=True)
    return bob


def knows(reg: Registry, who: Caller | None, name: str, data: bytes = DATA) -> bool:
    return query_and_keep(reg, who, name, [(sha256_of(data), len(data))]) == [sha256_of(data)]


@pytest.mark.parametrize("is_ingested", [True, False])
def test_a_file_that_may_be_read_elsewhere_need_not_be_sent(
    reg: Registry, ann: Caller, bob: Caller, is_ingested: bool
) -> None:
    (push_ingested if is_ingested else push)(reg, ann, "ann/model", {"a.bin": DATA})
    for name in ("bob/open", "bob/closed"):
        assert knows(reg, bob, name)
        assert commit(reg, bob, name, "main", [ADD]).changed


def test_a_secret_file_is_as_absent_as_one_that_never_was(
    reg: Registry, ann: Caller, bob: Caller
) -> None:
    push_ingested(reg, ann, "ann/secret", {"a.bin": DATA}, private=True)
    for name in ("bob/open", "bob/closed"):
        assert not knows(reg, bob, name)
        with pytest.raises(UploadNotFound):
            commit(reg, bob, name, "main", [ADD])
    assert count(reg, Hold) == 0
    # The owner cannot publish it by its hash either: a public repository takes no private file.
    create_repository(reg, ann, "ann/open")
    assert not knows(reg, ann, "ann/open")
    create_repository(reg, ann, "ann/closed", private=True)
    assert knows(reg, ann, "ann/closed")


def test_ones_own_upload_is_known_to_oneself_alone_and_kept(
    reg: Registry, ann: Caller, bob: Caller
) -> None:
    upload(reg, bob, DATA)
    with reg.db.write() as session:
        session.execute(update(Landing).values(expires_at=utc_now() - timedelta(seconds=1)))
    create_repository(reg, ann, "ann/model")
    assert not knows(reg, ann, "ann/model")
    assert knows(reg, bob, "bob/open")
    collect(reg)
    assert commit(reg, bob, "bob/open", "main", [ADD]).changed


def test_a_file_of_another_size_is_not_known(reg: Registry, ann: Caller, bob: Caller) -> None:
    push_ingested(reg, ann, "ann/model", {"a.bin": DATA})
    wanted = [(sha256_of(DATA), len(DATA) + 1), (sha256_of(b"absent"), 6)]
    assert query_and_keep(reg, bob, "bob/open", wanted) == []


def test_what_was_called_known_outlives_the_repository_that_had_it(
    reg: Registry, ann: Caller, bob: Caller
) -> None:
    push_ingested(reg, ann, "ann/model", {"a.bin": DATA})
    assert knows(reg, bob, "bob/open")
    delete_repository(reg, ann, "ann/model")
    with reg.db.write() as session:
        session.execute(update(File).values(ingested_at=utc_now() - timedelta(days=9)))
    collect(reg)
    assert not knows(reg, bob, "bob/closed"), "it was promised to another repository"
    made = commit(reg, bob, "bob/open", "main", [ADD])
    assert made.changed
    assert made.job_id is None
    collect(reg)
    assert is_clean(reg)


def test_what_nobody_commits_goes_when_its_hold_is_over(
    reg: Registry, ann: Caller, bob: Caller
) -> None:
    push_ingested(reg, ann, "ann/model", {"a.bin": DATA})
    assert knows(reg, bob, "bob/open")
    delete_repository(reg, ann, "ann/model")
    collect(reg)
    assert count(reg, File) == 1
    age_everything(reg, days=2)
    collect(reg)
    assert count(reg, File) == 0
    assert not knows(reg, bob, "bob/open")


def test_who_may_not_write_is_refused_before_anything_is_told(
    reg: Registry, ann: Caller, bob: Caller
) -> None:
    push_ingested(reg, ann, "ann/model", {"a.bin": DATA})
    push(reg, ann, "ann/secret", {"a.bin": DATA}, private=True)
    with pytest.raises(Forbidden, match="ann/model"):
        query_and_keep(reg, bob, "ann/model", [])
    with pytest.raises(RepositoryNotFound):
        query_and_keep(reg, bob, "ann/secret", [])
    with pytest.raises(Unauthorized):
        query_and_keep(reg, None, "ann/model", [])


def test_a_query_locks_for_a_few_files_at_a_time_and_not_at_all_for_what_is_not_here(
    reg: Registry, ann: Caller, bob: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltahub.registry.uploads.known_files.PART_TENSORS", 1)
    known = [b"one", b"two"]
    push_ingested(reg, ann, "ann/model", {"1.bin": known[0], "2.bin": known[1]})
    n_held = []

    def count_holds(connection: Connection) -> None:
        """Number of held files at the end of each write transaction."""
        holds = select(func.count()).select_from(Hold).where(Hold.repository_id.is_not(None))
        n_held.append(connection.execute(holds).scalar_one())

    event.listen(reg.db.write_engine, "commit", count_holds)
    for wanted in ([], [(sha256_of(b"absent"), 6), (sha256_of(b"never sent"), 10)]):
        assert query_and_keep(reg, bob, "bob/open", wanted) == []
        assert n_held == []
    asked = [(sha256_of(data), len(data)) for data in (known[0], b"absent", known[1])]
    have = query_and_keep(reg, bob, "bob/open", asked)
    event.remove(reg.db.write_engine, "commit", count_holds)
    assert have == [sha256_of(data) for data in known]
    assert n_held == [1, 2]


def test_a_query_is_bounded_and_its_hashes_are_hashes(reg: Registry, bob: Caller) -> None:
    with pytest.raises(LimitExceeded):
        query_and_keep(reg, bob, "bob/open", [(sha256_of(DATA), 1)] * 4)
    with pytest.raises(InvalidRequest):
        query_and_keep(reg, bob, "bob/open", [("x", 1)])

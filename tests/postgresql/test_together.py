"""Writers on PostgreSQL that work beside each other: nothing is lost, and nobody waits in vain."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import func, select, text

from deltahub.registry import Registry
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.commit import AddFile, commit, create_with_commit
from deltahub.registry.catalog.refs import create_ref
from deltahub.registry.catalog.repositories import create_repository
from deltahub.registry.db.models import Domain, File, Landing, Revision
from deltahub.registry.db.session import Database, repository_key
from deltahub.registry.errors import QuotaExceeded, RepositoryExists, WriteConflict
from deltahub.registry.jobs.requests import cancel_job
from deltahub.registry.quotas.limits import Limits, set_limits
from deltahub.registry.storage.base import StoreUnavailable
from deltahub.registry.stores.shared_write_locks import SharedWriteLocks
from deltahub.registry.uploads.committable import files_of_uploads, keep_uploads
from deltahub.registry.uploads.discard import drop_unused
from support.jobs.here import run_job
from support.merging.running import asked, push_family
from support.models import tiny_models as tiny
from support.registry.collecting import collect, is_clean
from support.registry.histories import ingest_all
from support.registry.ingested import run_replans, send_ingested
from support.registry.opened import caller, opened_registry, push, sha256_of, upload


@pytest.fixture(scope="module")
def reg(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with opened_registry(tmp_path_factory.mktemp("hub"), database_url=url) as registry:
        yield registry


def test_a_writer_waits_for_its_own_repository_and_for_no_other(reg: Registry, url: str) -> None:
    other = Database(url)
    done: list[str] = []

    def write(*keys: str) -> None:
        with other.write_beside(*keys):
            done.append(keys[0])

    with ThreadPoolExecutor(2) as pool:
        with reg.db.write_beside(repository_key(1)):
            pool.submit(write, repository_key(2)).result(10)
            waiting = pool.submit(write, repository_key(1))
            time.sleep(0.3)
            assert done == [repository_key(2)]
        waiting.result(10)
    other.close()


def test_a_writer_alone_waits_for_all_others(reg: Registry, url: str) -> None:
    other = Database(url)
    moments: list[str] = []

    def alone() -> None:
        with other.write():
            moments.append("alone")

    with ThreadPoolExecutor(1) as pool:
        with reg.db.write_beside():
            waiting = pool.submit(alone)
            time.sleep(0.3)
            moments.append("beside")
        waiting.result(10)
    assert moments == ["beside", "alone"]
    other.close()


def test_the_same_row_of_two_writers_is_a_conflict(reg: Registry, url: str) -> None:
    other = Database(url)
    inserted = threading.Event()

    def insert() -> None:
        with other.write_beside() as session:
            inserted.wait(10)
            session.add(Domain(key="both"))

    with ThreadPoolExecutor(1) as pool:
        with reg.db.write_beside() as session:
            session.add(Domain(key="both"))
            session.flush()
            waiting = pool.submit(insert)
            inserted.set()
            time.sleep(0.3)
        with pytest.raises(WriteConflict):
            waiting.result(10)
    other.close()


def test_commits_of_the_same_new_files_to_many_repositories_all_succeed(reg: Registry) -> None:
    users = [caller(reg, f"user{n}") for n in range(6)]
    contents = {f"{n}.txt": b"shared %d" % n for n in range(40)}
    for user in users:
        create_repository(reg, user, f"{user.name}/m")
        for data in contents.values():
            upload(reg, user, data)

    def push_to(user: Caller) -> None:
        paths = list(contents)
        if user.user_id % 2:
            paths.reverse()  # so that two writers would wait for each other's rows
        operations = [
            AddFile(path, sha256_of(contents[path]), len(contents[path])) for path in paths
        ]
        commit(reg, user, f"{user.name}/m", "main", operations)

    with ThreadPoolExecutor(len(users)) as pool:
        list(pool.map(push_to, users))
    with reg.db.read() as session:
        hashes = [sha256_of(data) for data in contents.values()]
        assert session.scalar(select(func.count()).where(File.sha256.in_(hashes))) == len(hashes)
    ingest_all(reg)
    collect(reg, revision_grace_s=0)
    assert is_clean(reg)


def test_an_upload_that_a_commit_uses_is_not_dropped_beside_it(reg: Registry, url: str) -> None:
    ann = caller(reg, "dropper")
    create_repository(reg, ann, "dropper/m")
    upload(reg, ann, b"used")
    with reg.db.write() as session:
        landing = session.scalars(select(Landing).where(Landing.sha256 == sha256_of(b"used"))).one()
        landing.promised_until = None
    other = Database(url)
    dropped: list[list[str]] = []

    def drop() -> None:
        with other.write_beside() as session:
            dropped.append(drop_unused(session, [landing.id]))

    with ThreadPoolExecutor(1) as pool:
        with reg.db.write_beside() as session:
            repository = load_repository(session, ann, "dropper/m", "write")
            uploads = keep_uploads(session, ann, [sha256_of(b"used")])
            waiting = pool.submit(drop)
            time.sleep(0.3)
            files_of_uploads(session, repository.domain_id, uploads)
        waiting.result(10)
    assert dropped == [[]]
    other.close()


def test_a_quota_holds_for_pushes_to_two_repositories_at_once(reg: Registry) -> None:
    ann = caller(reg, "bounded")
    set_limits(reg, None, "bounded", Limits(logical_bytes=1500), by_shell=True)
    contents = [b"%d" % n + b"x" * 998 for n in range(4)]
    for n, data in enumerate(contents):
        create_repository(reg, ann, f"bounded/m{n}")
        upload(reg, ann, data)

    def push_to(n: int) -> bool:
        data = contents[n]
        try:
            operation = AddFile("a", sha256_of(data), len(data))
            return commit(reg, ann, f"bounded/m{n}", "main", [operation]).changed
        except QuotaExceeded:
            return False

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(push_to, range(4))) == [False, False, False, True]


def test_commits_to_one_branch_follow_each_other(reg: Registry) -> None:
    ann = caller(reg, "chain")
    push(reg, ann, "chain/m", {"first": b"1"})
    for n in range(8):
        upload(reg, ann, b"chain %d" % n)

    def push_one(n: int) -> None:
        data = b"chain %d" % n
        commit(reg, ann, "chain/m", "main", [AddFile(f"{n}", sha256_of(data), len(data))])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(push_one, range(8)))
    with reg.db.read() as session:
        repository = load_repository(session, ann, "chain/m")
        rows = session.scalars(
            select(Revision).where(Revision.repository_id == repository.id).order_by(Revision.id)
        ).all()
    assert [row.number for row in rows] == list(range(1, 10))
    assert [row.parent_commit for row in rows[1:]] == [row.commit for row in rows[:-1]]


def test_nobody_waits_for_a_lock_while_eight_push_to_eight_repositories(reg: Registry) -> None:
    ann = caller(reg, "busy")
    for n in range(8):
        create_repository(reg, ann, f"busy/m{n}")
    waiting: list[str] = []
    ended = threading.Event()
    query = text(
        "SELECT query FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE NOT granted AND locktype = 'advisory'"
    )

    def watch() -> None:
        while not ended.is_set():
            with reg.db.read() as session:
                waiting.extend(session.scalars(query))
            time.sleep(0.005)

    def push_many(n: int) -> None:
        for i in range(10):
            data = b"%d %d" % (n, i)
            upload(reg, ann, data)
            operation = AddFile("a.txt", sha256_of(data), len(data))
            commit(reg, ann, f"busy/m{n}", "main", [operation])

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(push_many, range(8)))
    ended.set()
    watcher.join()
    assert waiting == []


def test_no_push_and_no_job_waits_for_another_writer(
    reg: Registry, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, other = caller(reg, "free"), Database(url)
    monkeypatch.setattr("deltahub.registry.db.session.BUSY_TIMEOUT_S", 1)
    tasks = [tiny.task(number) for number in range(2)]
    merged = tiny.to_file(tiny.task(3))
    with closing(other):
        with other.write_beside():  # whoever works alone waits for this one
            names = push_family(reg, free, tasks)
            run_replans(reg)
            assert run_job(reg, asked(reg, free, names))
            cancel_job(reg, free, asked(reg, free, names, name="free/again"))
            send_ingested(reg, free, "free/sent", merged)
            upload(reg, free, b"{}")
            adds = [AddFile("config.json", sha256_of(b"{}"), 2)]
            create_with_commit(reg, free, "free/copy", adds, "made", private=True)
            create_ref(reg, free, "free/copy", "tag", "v1", "main")
    assert is_clean(reg)


def test_a_limit_of_repositories_holds_for_those_that_are_made_at_once(reg: Registry) -> None:
    many = caller(reg, "many")
    set_limits(reg, None, "many", Limits(repositories=3), by_shell=True)

    def make(n: int) -> bool:
        try:
            create_repository(reg, many, f"many/m{n}")
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(make, range(8))) == 3


@pytest.mark.parametrize("spellings", [("name",), ("case", "Case", "CASE", "casE")])
def test_one_name_is_given_once(reg: Registry, spellings: tuple[str, ...]) -> None:
    one = caller(reg, f"one-{spellings[0]}")

    def make(n: int) -> bool:
        try:
            create_repository(reg, one, f"{one.name}/{spellings[n % len(spellings)]}")
        except RepositoryExists:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(make, range(8))) == 1


def test_a_copy_of_the_store_waits_for_writers_of_all_processes(reg: Registry, url: str) -> None:
    ours, theirs = SharedWriteLocks(url), SharedWriteLocks(url)
    waited: list[None] = []
    with ThreadPoolExecutor(1) as pool:
        with ours.writing("mark"), ours.writing("mark"), ours.writing("other"):
            ended = pool.submit(theirs.wait_for_writers, "mark", lambda: waited.append(None))
            time.sleep(0.5)
            assert not ended.done()
            assert waited
        ended.result(10)
    with ours.writing("mark"):
        pass
    theirs.wait_for_writers("mark", lambda: pytest.fail("nobody writes"))
    ours.close()
    theirs.close()


def test_a_writer_whose_lock_was_lost_meanwhile_fails(reg: Registry, url: str) -> None:
    locks = SharedWriteLocks(url)
    end = text(
        "SELECT pg_terminate_backend(pid) FROM pg_locks"
        " WHERE locktype = 'advisory' AND mode = 'ShareLock' AND pid <> pg_backend_pid()"
    )

    def write() -> None:
        with locks.writing("mark"), reg.db.read() as session:
            session.execute(end)

    with pytest.raises(StoreUnavailable, match="connection to the database ended"):
        write()
    with locks.writing("mark"):  # on a new connection
        pass
    locks.close()

"""Small files in batches: as safe as one by one, with far fewer waits for the disk."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import event, select

from deltahub.registry import Caller, Registry
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.commit import AddFile, CommitResult, commit
from deltahub.registry.catalog.entries import list_entries
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.db.models import Landing, Revision
from deltahub.registry.errors import HashMismatch, LimitExceeded, Unavailable
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.uploads import small_files
from deltahub.registry.uploads.landing import begin, receive, status
from deltahub.registry.uploads.small_files import SmallFiles
from support import forked
from support.registry.collecting import age_everything, collect, is_clean, n_objects
from support.registry.ingested import ingest
from support.registry.opened import caller, ensure_repository, opened_registry, push, sha256_of
from support.stores.durable_disk import DurableDisk


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path, max_file_bytes=100_000) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def several(n: int, seed: int = 0) -> list[bytes]:
    chance = Random(seed)
    return [chance.randbytes(chance.randrange(2000)) for _ in range(n)]


def send(reg: Registry, who: Caller, files: list[bytes]) -> list[str]:
    small = SmallFiles(reg, who)
    names = [small.add(data) for data in files]
    small.flush()
    return names


def landed(reg: Registry, who: Caller, sha256: str) -> bytes:
    found = status(reg, who, sha256)
    assert found.is_complete
    out = bytearray(found.size)
    reg.store.get_into(landing_key(found.id), 0, memoryview(out))
    return bytes(out)


def run_ingest(reg: Registry, made: CommitResult) -> None:
    with reg.db.read() as session:
        revision = session.scalars(select(Revision.id).where(Revision.commit == made.commit)).one()
    assert made.job_id is not None
    ingest(reg, revision, made.job_id)


def test_each_is_an_upload_under_both_its_names(reg: Registry, alice: Caller) -> None:
    files = [b"", b"a", b"a", *several(20)]
    names = send(reg, alice, files)
    assert names == [sha256_of(data) for data in files]
    for name, data in zip(names, files, strict=True):
        assert landed(reg, alice, name) == data
        with reg.db.read() as session:
            row = session.scalar(select(Landing).where(Landing.sha256 == name))
        assert row is not None
        assert row.git_blob_id == hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    assert is_clean(reg)


def test_many_cost_few_transactions_and_one_wait_each(tmp_path: Path) -> None:
    disk = DurableDisk(tmp_path)
    with opened_registry(tmp_path, disk) as reg:
        alice = caller(reg, "alice")
        begun: list[object] = []
        event.listen(reg.db.write_engine, "begin", begun.append)
        before = disk.n_fsyncs
        send(reg, alice, [b"%d" % i for i in range(300)])
        # Two for each batch of 256.
        assert len(begun) == 4
        # One for each file, one for the names of 64 files, and one to make their folder.
        assert disk.n_fsyncs - before == 300 + 5 + 1


def test_what_is_added_does_not_pile_up_in_memory(
    reg: Registry, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "BATCH_BYTES", 10_000)
    small = SmallFiles(reg, alice)
    names = [small.add(b"%d" % i * 1000) for i in range(25)]
    assert landed(reg, alice, names[0]) == b"0" * 1000
    small.flush()
    assert landed(reg, alice, names[-1]) == b"24" * 1000


def test_what_is_here_is_not_stored_again_and_stays_for_the_commit(
    reg: Registry, alice: Caller
) -> None:
    files = several(3)
    pushed = push(reg, alice, "alice/m", {"a": files[0]})
    before = n_objects(reg)
    send(reg, alice, files)
    assert n_objects(reg) == before + 2
    run_ingest(reg, pushed)
    # The client was told that the hub has it: another revision's ingest must not delete it.
    assert landed(reg, alice, sha256_of(files[0])) == files[0]


def test_too_large_a_file_is_refused(reg: Registry, alice: Caller) -> None:
    with pytest.raises(LimitExceeded, match="at most 100000"):
        SmallFiles(reg, alice).add(bytes(100_001))


def test_one_that_another_connection_is_sending_is_completed(reg: Registry, alice: Caller) -> None:
    data = b"sent twice" * 100
    name = sha256_of(data)

    def body() -> Iterator[bytes]:
        yield data[:500]
        send(reg, alice, [data])
        # The upload was used and ingested, and the slower connection still finds it.
        ensure_repository(reg, alice, "alice/m")
        made = commit(reg, alice, "alice/m", "main", [AddFile("a", name, len(data))])
        run_ingest(reg, made)
        yield data[500:]

    assert receive(reg, alice, name, len(data), 0, body()).is_complete
    assert landed(reg, alice, name) == data
    assert is_clean(reg)


def test_wrong_bytes_of_another_connection_do_not_take_it_away(
    reg: Registry, alice: Caller
) -> None:
    data = b"sent twice" * 100
    name = sha256_of(data)

    def body() -> Iterator[bytes]:
        send(reg, alice, [data])
        yield bytes(len(data))

    with pytest.raises(HashMismatch):
        receive(reg, alice, name, len(data), 0, body())
    assert landed(reg, alice, name) == data
    assert is_clean(reg)


def test_one_that_was_only_announced_is_completed(reg: Registry, alice: Caller) -> None:
    data = b"announced"
    begin(reg, alice, sha256_of(data), 5000)
    send(reg, alice, [data])
    assert landed(reg, alice, sha256_of(data)) == data


class _FailsAt(DurableDisk):
    """A disk that loses power at a given fsync, counted from a given moment."""

    left = -1

    def fsync(self, fd: int) -> None:
        self.left -= 1
        if self.left == 0:
            self.crash()
        super().fsync(fd)


@pytest.mark.parametrize("n_fsyncs", [1, 7, 20])
def test_a_loss_of_power_leaves_no_upload_that_is_not_whole(tmp_path: Path, n_fsyncs: int) -> None:
    disk = _FailsAt(tmp_path)
    files = several(20)
    with opened_registry(tmp_path, disk) as reg:
        alice = caller(reg, "alice")
        disk.left = n_fsyncs
        with pytest.raises(Unavailable):
            send(reg, alice, files)
    with opened_registry(tmp_path, disk) as reg:
        assert is_clean(reg)
        for name, data in zip(send(reg, alice, files), files, strict=True):
            assert landed(reg, alice, name) == data


COMMITS = """
import sys
from pathlib import Path
from deltahub.registry import Registry, Settings
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.uploads.small_files import SmallFiles
from support.registry.opened import caller, push
with Registry.open(Settings(data_dir=Path(sys.argv[1]))) as reg:
    alice = caller(reg, "alice")
    push(reg, alice, "alice/m", {"old": b"old"})
    small = SmallFiles(reg, alice)
    files = [b"%d" % i for i in range(20)]
    adds = [AddFile(f"{i}.txt", small.add(data), len(data)) for i, data in enumerate(files)]
    small.flush()
    commit(reg, alice, "alice/m", "main", adds)
"""
# The others are reached by the campaigns of tests/system.
WHERE = [
    "store.put_together.before_fsync",
    "store.put_together.after_rename:15",
    "small_files.after_store",
    "small_files.before_rows",
    "revisions.commit.after_commit:2",
]


@pytest.mark.parametrize("failpoint", WHERE)
def test_a_kill_leaves_the_old_revision_or_the_new_one(tmp_path: Path, failpoint: str) -> None:
    killed = forked.run(
        "-c", COMMITS, tmp_path / "data", environment={"DELTAHUB_FAILPOINT": failpoint}
    )
    assert killed.returncode == -9
    with opened_registry(tmp_path) as reg:
        alice = caller(reg, "alice")
        assert is_clean(reg)
        with reg.db.read() as session:
            revision = resolve_revision(session, load_repository(session, alice, "alice/m"), "main")
            n_entries = len(list_entries(session, revision))
        is_new = failpoint.startswith("revisions.commit.after")
        assert n_entries == (21 if is_new else 1)
        # A repeated attempt succeeds, and gc collects what was never committed.
        files = [b"%d" % i for i in range(20)]
        assert [landed(reg, alice, name) for name in send(reg, alice, files)] == files
        age_everything(reg, days=30)
        collect(reg)
        assert n_objects(reg) == n_entries
        assert is_clean(reg)

"""Small files are ingested many at a time: as safe as one by one, with far fewer waits."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, select

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.db.models import File, FileTensor, Hold, Landing, Tensor
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost
from deltahub.registry.ingest import pipeline
from deltahub.registry.ingest.pipeline import Ingest
from deltahub.registry.jobs import queue
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.uploads.landing import status
from deltahub.registry.uploads.small_files import SmallFiles
from deltahub.workers.context import JobContext
from deltahub.workers.failures import StepFailed
from deltahub.workers.jobs.ingest import ingest
from support import forked
from support.registry.collecting import age_everything, collect, count, is_clean, n_objects
from support.registry.ingested import read_file
from support.registry.opened import (
    caller,
    ensure_repository,
    opened_registry,
    push,
    sha256_of,
    upload,
)
from support.stores.durable_disk import DurableDisk

# Some files are so small that their recipes hold them; the others are stored beside their recipes.
FILES = {f"{i}.json": b'{"piece": %d}' % i * (20 if i % 2 else 500 + i) for i in range(10)}
REVISION = 1


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


@pytest.fixture(autouse=True)
def three_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "STEP_FILES", 3)


def pushed(reg: Registry, who: Caller, files: dict[str, bytes] = FILES) -> str:
    job_id = push(reg, who, "ann/m", files).job_id
    assert job_id is not None
    return job_id


def states(reg: Registry) -> dict[str, str]:
    """path -> state of the file."""
    query = (
        select(Entry.path, File.state)
        .join(File, File.id == Entry.file_id)
        .where(Entry.revision_id == REVISION)
    )
    with reg.db.read() as session:
        return {path: state for path, state in session.execute(query)}


def landing_of(reg: Registry, data: bytes) -> str:
    with reg.db.read() as session:
        row = session.scalars(select(Landing).where(Landing.sha256 == sha256_of(data))).one()
    return landing_key(row.id)


def assert_readable(reg: Registry, *but: str) -> None:
    for path, data in FILES.items():
        if path not in but:
            assert read_file(reg, REVISION, path) == data, path


def test_many_files_cost_few_transactions_and_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    disk = DurableDisk(tmp_path)
    files = {f"{i}.txt": b"piece %d" % i for i in range(300)}
    with opened_registry(tmp_path, disk) as reg:
        ann = caller(reg, "ann")
        ensure_repository(reg, ann, "ann/m")
        small = SmallFiles(reg, ann)
        adds = [AddFile(path, small.add(data), len(data)) for path, data in files.items()]
        small.flush()
        job_id = commit(reg, ann, "ann/m", "main", adds).job_id
        assert job_id is not None
        begun: list[object] = []
        event.listen(reg.db.write_engine, "begin", begun.append)
        synced: list[Path] = []
        sync = disk.fsync_dir
        disk.fsync_dir = lambda path: (synced.append(path), sync(path))[1]  # type: ignore[method-assign]
        before = disk.n_fsyncs
        Ingest(reg, FileReader(reg), REVISION, job_id).run()
        # Find stored tensors, the pack, its tensors, and release; two for each step of 256 files.
        assert len(begun) == 4 + 2 * 2
        assert disk.n_fsyncs - before <= 10
        assert len(synced) <= 6
        assert set(states(reg).values()) == {"ingested"}


def test_steps_are_cut_by_number_and_by_bytes(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = pushed(reg, ann)
    steps = Ingest(reg, FileReader(reg), REVISION, job_id).pending_files()
    assert [len(step) for step in steps] == [3, 3, 3, 1]
    monkeypatch.setattr(pipeline, "STEP_BYTES", len(FILES["0.json"]) + len(FILES["1.json"]))
    steps = Ingest(reg, FileReader(reg), REVISION, job_id).pending_files()
    assert [len(step) for step in steps] == [2, *[1] * 8]


def changed(reg: Registry, key: str, data: bytes) -> None:
    reg.store.put(key, [data[:-1] + b"?"])


def cut(reg: Registry, key: str, data: bytes) -> None:
    reg.store.put(key, [data[:-1]])


def lost(reg: Registry, key: str, data: bytes) -> None:
    reg.store.delete(key)


DAMAGES = {"changed": changed, "cut": cut, "lost": lost}


@pytest.mark.parametrize("is_scanned", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_upload_is_told_and_does_not_keep_the_others(
    reg: Registry, ann: Caller, damage: str, is_scanned: bool
) -> None:
    job_id = pushed(reg, ann)
    work = Ingest(reg, FileReader(reg), REVISION, job_id)
    if is_scanned:
        for file_ids in work.pending_files():
            work.scan(file_ids)
    DAMAGES[damage](reg, landing_of(reg, FILES["4.json"]), FILES["4.json"])
    with pytest.raises(DataLost, match="push the file again"):
        work.run()
    expected = {path: "lost" if path == "4.json" else "ingested" for path in FILES}
    assert states(reg) == expected
    assert_readable(reg, "4.json")
    assert count(reg, Landing) == 1
    with pytest.raises(DataLost, match="push the file again"):
        Ingest(reg, FileReader(reg), REVISION, job_id).run()
    # A client sends the bytes again: the same row is repaired.
    upload(reg, ann, FILES["4.json"])
    Ingest(reg, FileReader(reg), REVISION, job_id).run()
    assert set(states(reg).values()) == {"ingested"}
    assert_readable(reg)


def at_once(name: str, function: Callable[[], object]) -> object:
    return function()


def test_the_job_fails_with_the_damage_once_all_other_steps_are_done(
    reg: Registry, ann: Caller
) -> None:
    job_id = pushed(reg, ann)
    for path in ("0.json", "9.json"):
        changed(reg, landing_of(reg, FILES[path]), FILES[path])
    with reg.db.write() as session:
        assert queue.mark_running(session, job_id)
    context = JobContext(reg, FileReader(reg), job_id, at_once)  # type: ignore[arg-type]
    with pytest.raises(StepFailed, match=sha256_of(FILES["0.json"])) as caught:
        ingest(context, {"revision_id": REVISION})
    assert caught.value.code == "data_lost"
    lost = {path for path, state in states(reg).items() if state == "lost"}
    assert lost == {"0.json", "9.json"}


def test_files_are_readable_at_every_moment(reg: Registry, ann: Caller) -> None:
    job_id = pushed(reg, ann)
    # These rows were read before the ingest, which deletes the uploads in the middle of the read.
    with reg.db.read() as session:
        before = list(session.scalars(select(File)))
    seen: set[str] = set()

    def look(stage: str, done: int, total: int) -> None:
        seen.add(stage)
        assert_readable(reg)

    Ingest(reg, FileReader(reg), REVISION, job_id, report=look).run()
    assert seen == {"scan", "store", "prove"}
    reader = FileReader(reg)
    read = {b"".join(reader.stream_file(file, 0, file.size)) for file in before}
    assert read == set(FILES.values())


class Cancelled(Exception):
    pass


def test_a_job_that_is_stopped_between_steps_has_done_whole_ones(
    reg: Registry, ann: Caller
) -> None:
    job_id = pushed(reg, ann)
    n_told = 0

    def stop(stage: str, done: int, total: int) -> None:
        nonlocal n_told
        n_told += stage == "prove"
        if n_told == 5:
            raise Cancelled

    with pytest.raises(Cancelled):
        Ingest(reg, FileReader(reg), REVISION, job_id, report=stop).run()
    # The fifth file is in the second step, of which no file has been switched.
    assert sorted(path for path, state in states(reg).items() if state == "ingested") == [
        "0.json",
        "1.json",
        "2.json",
    ]
    assert_readable(reg)
    Ingest(reg, FileReader(reg), REVISION, job_id).run()
    assert set(states(reg).values()) == {"ingested"}


def test_an_upload_that_somebody_counts_on_stays_and_its_neighbours_go(
    reg: Registry, ann: Caller
) -> None:
    job_id = pushed(reg, ann)
    assert status(reg, ann, sha256_of(FILES["1.json"])).is_complete
    Ingest(reg, FileReader(reg), REVISION, job_id).run()
    assert set(states(reg).values()) == {"ingested"}
    with reg.db.read() as session:
        assert session.scalars(select(Landing.sha256)).all() == [sha256_of(FILES["1.json"])]
    assert [info.key for info in reg.store.list("landing/")] == [landing_of(reg, FILES["1.json"])]


def test_public_and_private_files_of_a_step_stay_in_their_domains(
    reg: Registry, ann: Caller
) -> None:
    public = {path: data for path, data in FILES.items() if int(path[0]) % 3 == 0}
    push(reg, caller(reg, "bob"), "bob/public", public)
    ensure_repository(reg, ann, "ann/m", private=True)
    for path in FILES.keys() - public.keys():
        upload(reg, ann, FILES[path])
    adds = [AddFile(path, sha256_of(data), len(data)) for path, data in FILES.items()]
    made = commit(reg, ann, "ann/m", "main", adds)
    assert made.job_id is not None
    with reg.db.read() as session:
        rows = session.execute(select(File.sha256, File.domain_id)).all()
    domains = {sha256: domain for sha256, domain in rows}
    assert len(rows) == len(domains)
    assert len({domains[sha256_of(data)] for data in list(FILES.values())[:3]}) == 2
    Ingest(reg, FileReader(reg), 2, made.job_id).run()
    with reg.db.read() as session:
        query = (
            select(File.sha256, File.state, Tensor.domain_id)
            .join(FileTensor, FileTensor.file_id == File.id)
            .join(Tensor, Tensor.id == FileTensor.tensor_id)
        )
        for sha256, state, domain in session.execute(query):
            assert (state, domain) == ("ingested", domains[sha256])
    for path, data in FILES.items():
        assert read_file(reg, 2, path) == data
    assert is_clean(reg)


INGEST = """
import sys
from pathlib import Path
from deltahub.registry import Registry, Settings
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.ingest import pipeline
pipeline.STEP_FILES = 3
with Registry.open(Settings(data_dir=Path(sys.argv[1]))) as reg:
    pipeline.Ingest(reg, FileReader(reg), 1, sys.argv[2]).run()
"""
# Inside a step of files and between two; how many are ingested then, with rows of uploads left.
WHERE = {
    "ingest.scan.before_plan:5": (0, 10),
    "packs.put.after_proof": (0, 10),
    "ingest.finish.before_commit:2": (3, 7),
    "store.delete.after_unlink:5": (6, 7),
    "landing.delete.before_rows:2": (6, 7),
    "ingest.finish.after_delete:3": (9, 1),
}


@pytest.mark.parametrize("failpoint", WHERE)
def test_a_kill_loses_nothing_and_the_next_run_makes_nothing_twice(
    tmp_path: Path, failpoint: str
) -> None:
    with opened_registry(tmp_path) as reg:
        job_id = pushed(reg, caller(reg, "ann"))
    killed = forked.run(
        "-c", INGEST, tmp_path / "data", job_id, environment={"DELTAHUB_FAILPOINT": failpoint}
    )
    assert killed.returncode == -9
    with opened_registry(tmp_path) as reg:
        assert is_clean(reg)
        assert_readable(reg)
        n_ingested, n_uploads = WHERE[failpoint]
        assert list(states(reg).values()).count("ingested") == n_ingested
        assert count(reg, Landing) == n_uploads
        Ingest(reg, FileReader(reg), REVISION, job_id).run()
        assert set(states(reg).values()) == {"ingested"}
        assert_readable(reg)
        # Each recipe and each tensor is stored once, and the job holds nothing any more.
        assert count(reg, Tensor) == count(reg, FileTensor) == len(FILES) + len(FILES) // 2
        assert count(reg, Hold) == 0
        for _ in range(2):
            age_everything(reg, days=30)
            collect(reg)
        assert count(reg, Landing) == 0
        assert n_objects(reg) == 1
        assert is_clean(reg)
        assert_readable(reg)

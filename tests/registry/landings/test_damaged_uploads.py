"""A damaged upload gives no wrong byte, is not called known, and is replaced by the next upload."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from deltahub.registry import Caller, Registry, Settings
from deltahub.registry.db.models import File, Landing, User, utc_now
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost, HashMismatch, Unavailable
from deltahub.registry.ingest.pipeline import Ingest
from deltahub.registry.landings.damage import UploadDamaged
from deltahub.registry.landings.reader import LandingReader
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.repair.run import repair
from deltahub.registry.reports.revision import report_revision
from deltahub.registry.storage.base import ObjectNotFound, ShortObject, StoreUnavailable
from deltahub.registry.storage.checksums import BLOCK_BYTES
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.uploads.known_files import query_and_keep
from deltahub.registry.uploads.landing import begin, receive, status
from deltahub.registry.uploads.small_files import SmallFiles
from support.registry.collecting import age_everything, collect
from support.registry.opened import caller, ensure_repository, opened_registry, push, upload

SIZE = 2 * BLOCK_BYTES + 12_345
DATA = bytes(i * 7 % 253 for i in range(SIZE))
OTHER = b"another file of the revision"


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def landing(reg: Registry, sha256: str, user: str = "ann") -> Landing:
    with reg.db.read() as session:
        owner = User.id == Landing.user_id
        query = select(Landing).join(User, owner).where(Landing.sha256 == sha256, User.name == user)
        return session.scalars(query).one()


def file_row(reg: Registry, sha256: str) -> File:
    with reg.db.read() as session:
        return session.scalars(select(File).where(File.sha256 == sha256)).one()


def flip(reg: Registry, landing_id: str, at: int) -> None:
    """Change one bit of the object in place, as a disk does."""
    path = reg.data_dir / "objects" / landing_key(landing_id)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def read(reg: Registry, file: File, start: int = 0, end: int = SIZE) -> bytes:
    return b"".join(FileReader(reg).stream_file(file, start, end))


def make_good(reg: Registry, landing_id: str) -> None:
    """Forget that the upload was found to be damaged."""
    with reg.db.write() as session:
        session.execute(update(Landing).where(Landing.id == landing_id).values(state="complete"))
        session.execute(update(File).values(state="landed"))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, SIZE - 1), ends=st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)))
def test_a_range_has_the_pushed_bytes_or_an_error(
    reg: Registry, ann: Caller, at: int, ends: tuple[int, int]
) -> None:
    push(reg, ann, "ann/m", {"a.bin": DATA})
    sha256 = upload(reg, ann, DATA)
    row, file = landing(reg, sha256), file_row(reg, sha256)
    start, end = sorted(ends)
    flip(reg, row.id, at)
    try:
        for read_range in (
            lambda: read(reg, file, start, end),
            lambda: LandingReader(reg, row.id).read_at(start, end - start),
        ):
            try:
                assert read_range() == DATA[start:end]
                assert not start <= at < end
            except UploadDamaged:
                assert start // BLOCK_BYTES <= at // BLOCK_BYTES <= (end - 1) // BLOCK_BYTES
            finally:
                make_good(reg, row.id)
    finally:
        flip(reg, row.id, at)


@given(st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 70_000)), max_size=8))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_reader_gives_any_ranges_in_any_order(
    reg: Registry, ann: Caller, ranges: list[tuple[int, int]]
) -> None:
    reader = LandingReader(reg, landing(reg, upload(reg, ann, DATA)).id)
    for start, length in ranges:
        if start + length <= SIZE:
            assert reader.read_at(start, length) == DATA[start : start + length]
        else:
            with pytest.raises(ShortObject):
                reader.read_at(start, length)


@pytest.mark.parametrize("how", ["flipped", "cut", "lost"])
def test_the_next_upload_of_the_same_bytes_replaces_a_damaged_one_at_once(
    reg: Registry, ann: Caller, how: str
) -> None:
    job_id = push(reg, ann, "ann/m", {"a.bin": DATA, "b.txt": OTHER}).job_id
    assert job_id is not None
    sha256 = upload(reg, ann, DATA)
    row, file = landing(reg, sha256), file_row(reg, sha256)
    key = landing_key(row.id)
    if how == "flipped":
        flip(reg, row.id, SIZE // 2)
    elif how == "cut":
        reg.store.put(key, [DATA[:-1]])
    else:
        reg.store.delete(key)
    with pytest.raises(DataLost, match="push the file again"):
        Ingest(reg, FileReader(reg), 1, job_id).run()
    # The other file is ingested. The damaged one is told as such everywhere.
    assert file_row(reg, upload(reg, ann, OTHER)).state == "ingested"
    with pytest.raises(DataLost, match="push the file again"):
        read(reg, file, 0, 10)
    assert query_and_keep(reg, ann, "ann/m", [(sha256, SIZE)]) == []
    assert not status(reg, ann, sha256).is_complete
    assert begin(reg, ann, sha256, SIZE).received == 0
    report = report_revision(reg, FileReader(reg), ann, "ann/m")
    assert {f.path: f.state for f in report.files} == {"a.bin": "lost", "b.txt": "ingested"}
    assert sha256 in {found.target for found in fsck(reg, read_data=True)}

    finish(reg, job_id)
    upload(reg, ann, DATA)
    assert read(reg, file) == DATA
    assert query_and_keep(reg, ann, "ann/m", [(sha256, SIZE)]) == [sha256]
    # Its ingest is enqueued again.
    (queued,) = jobs(reg, "queued")
    Ingest(reg, FileReader(reg), 1, queued).run()
    assert file_row(reg, sha256).state == "ingested"
    assert read(reg, file_row(reg, sha256)) == DATA
    assert list(fsck(reg, read_data=True)) == []


def jobs(reg: Registry, state: str) -> list[str]:
    with reg.db.read() as session:
        return list(session.scalars(select(Job.id).where(Job.state == state)))


def finish(reg: Registry, job_id: str) -> None:
    with reg.db.write() as session:
        session.execute(
            update(Job).where(Job.id == job_id).values(state="failed", finished_at=utc_now())
        )


def test_the_upload_of_another_user_replaces_a_damaged_one(reg: Registry, ann: Caller) -> None:
    push(reg, ann, "ann/m", {"a.bin": DATA})
    bob = caller(reg, "bob")
    sha256 = upload(reg, ann, DATA)
    row, file = landing(reg, sha256), file_row(reg, sha256)
    flip(reg, row.id, 0)
    with pytest.raises(UploadDamaged):
        read(reg, file)
    ensure_repository(reg, bob, "bob/m")
    assert query_and_keep(reg, bob, "bob/m", [(sha256, SIZE)]) == []
    upload(reg, bob, DATA)
    assert read(reg, file) == DATA
    # Nothing needs the damaged upload any more, so gc deletes it once it has expired.
    age_everything(reg, 3)
    collect(reg)
    with reg.db.read() as session:
        assert session.scalars(select(Landing.state)).all() == ["complete"]
    assert read(reg, file) == DATA


def test_a_file_with_two_uploads_is_read_on_from_the_good_one(reg: Registry, ann: Caller) -> None:
    push(reg, ann, "ann/m", {"a.bin": DATA})
    sha256 = upload(reg, ann, DATA)
    upload(reg, caller(reg, "bob"), DATA)
    flip(reg, landing(reg, sha256).id, SIZE - 1)
    assert read(reg, file_row(reg, sha256)) == DATA
    assert landing(reg, sha256).state == "damaged"


def test_a_small_file_of_a_commit_replaces_a_damaged_upload(reg: Registry, ann: Caller) -> None:
    push(reg, ann, "ann/m", {"b.txt": OTHER})
    sha256 = upload(reg, ann, OTHER)
    file = file_row(reg, sha256)
    flip(reg, landing(reg, sha256).id, 3)
    with pytest.raises(UploadDamaged):
        read(reg, file, 0, len(OTHER))
    small = SmallFiles(reg, ann)
    small.add(OTHER)
    small.flush()
    assert read(reg, file, 0, len(OTHER)) == OTHER


def test_wrong_bytes_do_not_replace_a_damaged_upload(reg: Registry, ann: Caller) -> None:
    push(reg, ann, "ann/m", {"a.bin": DATA})
    sha256 = upload(reg, ann, DATA)
    row, file = landing(reg, sha256), file_row(reg, sha256)
    flip(reg, row.id, 5)
    with pytest.raises(UploadDamaged):
        read(reg, file)
    with pytest.raises(HashMismatch):
        receive(reg, ann, sha256, SIZE, 0, [DATA[:-1] + b"?"])
    with pytest.raises(UploadDamaged):
        read(reg, file)
    with reg.db.read() as session:
        assert session.scalar(select(func.count()).select_from(Landing)) == 1
    upload(reg, ann, DATA)
    assert read(reg, file) == DATA


def test_an_ingested_upload_is_gone_and_not_damaged(reg: Registry, ann: Caller) -> None:
    job_id = push(reg, ann, "ann/m", {"a.bin": DATA}).job_id
    assert job_id is not None
    with reg.db.read() as session:
        landing_id = session.scalars(select(Landing.id)).one()
        file = session.scalars(select(File)).one()
    reader = LandingReader(reg, landing_id)
    assert reader.read_at(0, 9) == DATA[:9]
    with reg.db.write() as session:
        session.execute(update(Landing).values(promised_until=None))
    Ingest(reg, FileReader(reg), 1, job_id).run()
    with pytest.raises(ObjectNotFound):
        reader.read_at(BLOCK_BYTES, 9)
    assert read(reg, file) == DATA


def test_an_upload_of_an_older_release_is_verified_as_a_whole_at_the_first_read(
    reg: Registry, ann: Caller
) -> None:
    push(reg, ann, "ann/m", {"a.bin": DATA, "b.txt": OTHER})
    sha256 = upload(reg, ann, DATA)
    with reg.db.write() as session:
        session.execute(update(Landing).values(checksums=None))
    assert read(reg, file_row(reg, sha256), 5, 9) == DATA[5:9]
    with reg.db.read() as session:
        query = select(Landing.checksums).where(Landing.sha256 == sha256)
        assert session.scalars(query).one() is not None
    flip(reg, landing(reg, upload(reg, ann, OTHER)).id, 0)
    with pytest.raises(UploadDamaged):
        read(reg, file_row(reg, upload(reg, ann, OTHER)), 0, 1)


def test_a_store_that_is_away_damages_no_upload(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        push(reg, ann, "ann/m", {"a.bin": DATA})
        file = file_row(reg, upload(reg, ann, DATA))
        objects, away = reg.data_dir / "objects", tmp_path / "away"
        objects.rename(away)
        objects.mkdir()  # a mount point without its disk
        for read_or_write in (
            lambda: read(reg, file),
            lambda: upload(reg, ann, b"new"),
        ):
            with pytest.raises((Unavailable, StoreUnavailable), match=r"away|No such file"):
                read_or_write()
        assert not list(objects.iterdir())
    with pytest.raises(StoreUnavailable, match="is its disk mounted"), opened_registry(tmp_path):
        pass
    objects.rmdir()
    away.rename(objects)
    with opened_registry(tmp_path) as reg:
        assert read(reg, file) == DATA


def test_repair_takes_an_upload_back_that_an_operator_has_restored(
    reg: Registry, ann: Caller
) -> None:
    job_id = push(reg, ann, "ann/m", {"a.bin": DATA}).job_id
    sha256 = upload(reg, ann, DATA)
    row, file = landing(reg, sha256), file_row(reg, sha256)
    flip(reg, row.id, 7)
    with pytest.raises(UploadDamaged):
        read(reg, file)
    assert repair(reg).restored_uploads == 0
    flip(reg, row.id, 7)
    assert repair(reg).restored_uploads == 1
    assert read(reg, file) == DATA
    assert jobs(reg, "queued") == [job_id]


def test_what_was_stored_before_an_upload_was_damaged_is_enough(reg: Registry, ann: Caller) -> None:
    job_id = push(reg, ann, "ann/m", {"a.bin": DATA}).job_id
    assert job_id is not None
    sha256 = upload(reg, ann, DATA)
    work = Ingest(reg, FileReader(reg), 1, job_id)
    steps = work.pending_files()
    for file_ids in steps:
        work.scan(file_ids)
    while work.store_next_pack():
        pass
    file = file_row(reg, sha256)
    flip(reg, landing(reg, sha256).id, 0)
    with pytest.raises(UploadDamaged):
        read(reg, file)
    for file_ids in steps:
        work.finish(file_ids)
    assert file_row(reg, sha256).state == "ingested"
    assert read(reg, file) == DATA


def test_a_hub_that_is_only_read_verifies_an_upload_of_an_older_release_too(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        push(reg, caller(reg, "ann"), "ann/m", {"a.bin": DATA})
        file = file_row(reg, upload(reg, caller(reg, "ann"), DATA))
        with reg.db.write() as session:
            session.execute(update(Landing).values(checksums=None))
    with Registry.open_to_read(Settings(data_dir=tmp_path / "data")) as reg:
        assert read(reg, file, SIZE - 9, SIZE) == DATA[-9:]
        with reg.db.read() as session:
            assert session.scalars(select(Landing.checksums)).one() is None

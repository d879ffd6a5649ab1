"""A full disk in an upload, an ingest or a commit: a clear error, and nothing half written."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from sqlalchemy import text

from deltahub.registry import Registry
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import StorageFull
from deltahub.registry.ingest.pipeline import Ingest
from deltahub.registry.jobs import queue
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.storage.base import StoreFull
from support.models import tiny_models
from support.needed import lacking
from support.registry.commits import files
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry, push, sha256_of, upload

PATH = "model.safetensors"


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


def test_a_commit_without_room_for_its_rows_changes_nothing(reg: Registry) -> None:
    """A limit on SQLite's pages gives the same error as a full disk."""
    ann = caller(reg, "ann")
    push(reg, ann, "ann/model", {"a.txt": b"first"})
    paths = [f"folder/{i:05}-{'x' * 200}.txt" for i in range(300)]
    second = upload(reg, ann, b"second")
    adds = [AddFile(path, second, 6) for path in paths]

    def limit(n_pages: int) -> None:
        with reg.db.write() as session:
            session.execute(text(f"PRAGMA max_page_count = {n_pages}"))

    limit(1)  # the current number: SQLite never goes below it
    with pytest.raises(StorageFull, match="no room for the database"):
        commit(reg, ann, "ann/model", "main", adds, "second")
    assert files(reg, name="ann/model") == {"a.txt": sha256_of(b"first")}
    assert list(fsck(reg, read_data=True)) == []
    limit(1 << 30)
    made = commit(reg, ann, "ann/model", "main", adds, "second")
    assert made.job_id is not None
    assert len(files(reg, name="ann/model")) == 301
    assert list(fsck(reg, read_data=True)) == []


def run_on_small_disk(tmp_path: Path, size: str) -> None:
    """Run this file as a script in its own mount namespace, on a real file system of `size`."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = f'mount -t tmpfs -o size={size} none "$1" && '
    in_namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    try:
        subprocess.run([*in_namespace, mount + "true", "-", str(folder)], check=True, timeout=20)
    except (OSError, subprocess.CalledProcessError):
        lacking("this machine lets nobody mount a small file system (unshare --user --mount)")
    run = subprocess.run(
        [*in_namespace, mount + 'exec "$2" "$3" "$1"', "-", folder, sys.executable, __file__],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.long
def test_a_real_disk_that_is_full_stops_uploads_ingests_and_commits_cleanly(
    tmp_path: Path,
) -> None:
    run_on_small_disk(tmp_path, "20m")


class Ballast:
    """A file that leaves so many bytes free."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ballast"

    def leave(self, n_bytes: int) -> None:
        self._path.unlink(missing_ok=True)
        free = os.statvfs(self._path.parent).f_bavail * os.statvfs(self._path.parent).f_frsize
        with self._path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free - n_bytes))

    def remove(self) -> None:
        self._path.unlink()


def on_small_disk(folder: Path) -> None:
    ballast = Ballast(folder)
    # Effort fast has no search for low rank: each try encodes everything again.
    with opened_registry(folder, codec_effort="fast") as reg:
        ann = caller(reg, "ann")
        models = tiny_models.base(), tiny_models.finetune(1e-4)
        base, tuned = (tiny_models.to_file(tiny_models.cast(t, torch.bfloat16)) for t in models)
        push_ingested(reg, ann, "ann/base", {PATH: base})

        ballast.leave(200 << 10)
        try:
            upload(reg, ann, tuned)
            raise AssertionError("there was no room for the upload")
        except StorageFull:
            pass
        ballast.remove()
        assert list(fsck(reg, read_data=True)) == []

        # More than the buffer of a pack's scratch file, so that writing it fails in the middle.
        pushed = {PATH: tuned, "noise.bin": os.urandom(1500 << 10)}
        job_id = push(reg, ann, "ann/tuned", pushed, base="ann/base").job_id
        assert job_id is not None
        with reg.db.write() as session:
            assert queue.mark_running(session, job_id)
        n_refused = 0
        for free in range(0, 6 << 20, 150 << 10):
            ballast.leave(free)
            try:
                Ingest(reg, FileReader(reg), 2, job_id).run()
                break
            except (StorageFull, StoreFull):
                n_refused += 1
            finally:
                ballast.remove()
            assert [path for path in reg.scratch.iterdir() if path.suffix == ".pack"] == []
            assert list(fsck(reg, read_data=True)) == []
            assert read_file(reg, 2, PATH) == tuned
        assert n_refused > 5
        Ingest(reg, FileReader(reg), 2, job_id).run()
        assert read_file(reg, 2, PATH) == tuned

        small = upload(reg, ann, b"s")
        adds = [AddFile(f"{i}-{'x' * 200}", small, 1) for i in range(1000)]
        with closing(sqlite3.connect(reg.data_dir / "deltahub.sqlite3")) as database:
            # Reused space in the write-ahead log counts as free space, too.
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ballast.leave(0)
        try:
            commit(reg, ann, "ann/tuned", "main", adds, "no room")
            raise AssertionError("there was no room for the commit")
        except StorageFull:
            pass
        ballast.remove()
        assert files(reg, name="ann/tuned") == {p: sha256_of(d) for p, d in pushed.items()}
        commit(reg, ann, "ann/tuned", "main", adds, "room")
        assert len(files(reg, name="ann/tuned")) == 1002
        assert list(fsck(reg, read_data=True)) == []


if __name__ == "__main__":
    on_small_disk(Path(sys.argv[1]))

"""The power fails at moments of a hub's work: fsck is clean, nothing acknowledged is lost.

The work is done once, on a disk that knows what is durable. The durable state changes at each fsync
and at each commit of the database. Before each of these, the durable state is copied, and each copy
is later opened like a data folder after a loss of power.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import save
from sqlalchemy import event

from deltahub.registry import Registry
from deltahub.registry.access import tokens, users
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.entries import find_entry
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.uploads.landing import status
from support.registry.client_packs import frames_of, near, send_pack, weights
from support.registry.crash_workload import collect_all, run_jobs
from support.registry.opened import caller, opened_registry, push, sha256_of, upload
from support.stores.durable_disk import DurableDisk

BASE = weights(20_000, seed=1)
TUNED = near(BASE, seed=2)
DATABASE = "deltahub.sqlite3"


@dataclass
class Promises:
    """What the hub has acknowledged so far."""

    files: dict[str, bytes] = field(default_factory=dict)  # repository -> its model
    uploads: set[str] = field(default_factory=set)


@dataclass
class Moments:
    """Copies of the durable state, each with what the hub had acknowledged by then."""

    folder: Path
    disk: "WatchedDisk"
    promises: Promises = field(default_factory=Promises)
    taken: list[Promises] = field(default_factory=list)

    def take(self) -> None:
        data = self.disk.root
        if not (data / DATABASE).exists():
            return
        place = self.folder / str(len(self.taken))
        place.mkdir()
        self.disk.copy_durable(place / "data")
        # Its log is fsynced at every commit, so what is committed is durable.
        with (
            closing(sqlite3.connect(data / DATABASE)) as source,
            closing(sqlite3.connect(place / "data" / DATABASE)) as target,
        ):
            source.backup(target)
        promises = Promises(dict(self.promises.files), set(self.promises.uploads))
        self.taken.append(promises)


class WatchedDisk(DurableDisk):
    moments: Moments | None = None

    def fsync(self, fd: int) -> None:
        if self.moments is not None:
            self.moments.take()
        super().fsync(fd)

    def fsync_dir(self, path: Path) -> None:
        if self.moments is not None:
            self.moments.take()
        super().fsync_dir(path)


def work(reg: Registry, promises: Promises) -> None:
    """A fine-tune before its base, a pack and a recipe, a deletion, garbage collection."""
    ann = caller(reg, "ann")
    for name, data, base in (("tuned", TUNED, "ann/base"), ("base", BASE, None)):
        model = save({"w": np.frombuffer(data, "<f2").reshape(100, -1)})
        promises.uploads.add(upload(reg, ann, model))
        push(reg, ann, f"ann/{name}", {"model.safetensors": model}, base=base)
        promises.uploads.clear()
        promises.files[f"ann/{name}"] = model
        run_jobs(reg)
    again = near(BASE, seed=3)
    send_pack(reg, ann, "ann/base", frames_of(again, BASE))
    promises.uploads.add(upload(reg, ann, b"never committed" * 99))
    del promises.files["ann/tuned"]
    delete_repository(reg, ann, "ann/tuned")
    collect_all(reg)


def check(folder: Path, promises: Promises, *, goes_on: bool) -> None:
    with opened_registry(folder) as reg:
        assert list(fsck(reg, read_data=True)) == []
        if not goes_on or not (promises.files or promises.uploads):
            return
        ann = next(user for user in users.list_users(reg) if user.name == "ann")
        who = tokens.authenticate(reg, tokens.create_token(reg, ann.name, "write"))
        for sha256 in promises.uploads:
            assert status(reg, who, sha256).is_complete
        run_jobs(reg)
        for name, data in promises.files.items():
            with reg.db.read() as session:
                repository = load_repository(session, who, name, "read")
                revision = resolve_revision(session, repository, "main")
                file = find_entry(session, revision, "model.safetensors").file
            read = b"".join(bytes(part) for part in FileReader(reg).stream_file(file, 0, file.size))
            assert sha256_of(read) == sha256_of(data), name
        assert list(fsck(reg, read_data=True)) == []


def survive_power_loss(tmp_path: Path, *, every: int, goes_on_every: int) -> None:
    """Open each `every`-th of the moments; in each `goes_on_every`-th the hub goes on working."""
    (tmp_path / "data").mkdir()
    disk = WatchedDisk(tmp_path / "data")
    moments = Moments(tmp_path / "moments", disk)
    moments.folder.mkdir()
    with opened_registry(tmp_path, disk) as reg:
        disk.moments = moments
        event.listen(reg.db.write_engine, "commit", lambda connection: moments.take())
        work(reg, moments.promises)
        disk.moments = None
    assert len(moments.taken) > 60
    for number, promises in list(enumerate(moments.taken))[::every]:
        check(moments.folder / str(number), promises, goes_on=number % goes_on_every == 0)

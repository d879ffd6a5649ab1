"""Pushes and ingests revisions like a worker, and reads how their tensors are stored."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from deltahub.codecs.registry import BY_NUMBER
from deltahub.registry import Caller, Registry
from deltahub.registry.cards.describe import describe
from deltahub.registry.catalog.commit import AddFile, Operation, commit
from deltahub.registry.catalog.weights import named_tensors, safetensors_files
from deltahub.registry.db.models import File, Frame, Revision, Tensor, TensorBase
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.ingest.pipeline import Ingest
from deltahub.registry.ingest.verify_recipe import verify_recipe
from deltahub.registry.jobs import queue
from deltahub.registry.lineage.measured import measure_affected
from deltahub.registry.packs.locations import resolve
from deltahub.registry.reencode.replan import Replanner
from deltahub.registry.reencode.triggers import after_ingest
from deltahub.registry.uploads.client_packs import accept_pack
from deltahub.registry.uploads.recipes import submit_recipe
from support.models.tiny_models import to_file
from support.registry.opened import ensure_repository, push, sha256_of, upload
from support.service.client_door import pack_and_recipe


@dataclass(frozen=True)
class Stored:
    """How a tensor is stored: its row, codec, bytes in packs, depth and bases (rows)."""

    id: int
    codec: str
    size: int
    stored_bytes: int
    depth: int
    bases: frozenset[int]


def push_ingested(
    reg: Registry,
    who: Caller,
    name: str,
    files: dict[str, bytes],
    *,
    private: bool = False,
    base: str | None = None,
) -> int:
    """Push and ingest these files; returns the new revision's row id. Re-plan jobs are queued."""
    pushed = push(reg, who, name, files, private=private, base=base)
    with reg.db.read() as session:
        revision = session.scalars(
            select(Revision.id).where(Revision.commit == pushed.commit)
        ).one()
    if pushed.job_id is not None:
        ingest(reg, revision, pushed.job_id)
    describe(reg, FileReader(reg), revision)
    return revision


def send_ingested(
    reg: Registry,
    who: Caller,
    name: str,
    data: bytes,
    *,
    private: bool = False,
    base: str | None = None,
) -> int:
    """Push this model like the DeltaHub client without a base; returns the new revision's row id.

    It sends standalone frames and a recipe, which is verified. Re-plan jobs are queued.
    """
    pack, recipe = pack_and_recipe(data, to_file({"unlike": torch.zeros(1)}))
    ensure_repository(reg, who, name, private=private)
    accept_pack(reg, FileReader(reg), who, name, upload(reg, who, pack))
    submitted = submit_recipe(reg, who, name, recipe)
    if submitted.job_id is not None:
        with reg.db.write_beside() as session:
            assert queue.mark_running(session, submitted.job_id)
            payload = dict(session.get_one(Job, submitted.job_id).payload)
        verify_recipe(reg, FileReader(reg), submitted.job_id, payload)
        with reg.db.write_beside() as session:
            queue.mark_done(session, submitted.job_id, {})
    return declare(reg, who, name, base, [AddFile("model.safetensors", sha256_of(data), len(data))])


def declare(
    reg: Registry,
    who: Caller,
    name: str,
    base: str | None,
    operations: Sequence[Operation] = (),
) -> int:
    """Commit a declaration of this base and run its job; returns the new revision's row id."""
    pushed = commit(reg, who, name, "main", operations, base=base)
    with reg.db.read() as session:
        revision = session.scalars(
            select(Revision.id).where(Revision.commit == pushed.commit)
        ).one()
        waiting = queue.next_queued(session, 10, kinds=["ingest"])
    for job in waiting:
        if job.payload["revision_id"] == revision:
            ingest(reg, revision, job.id)
    return revision


def ingest(reg: Registry, revision: int, job_id: str) -> None:
    with reg.db.write_beside() as session:
        assert queue.mark_running(session, job_id)
    Ingest(reg, FileReader(reg), revision, job_id).run()
    after_ingest(reg, FileReader(reg), revision)
    with reg.db.write_beside() as session:
        queue.mark_done(session, job_id, {})


def run_replans(reg: Registry) -> int:
    """Run the queued replan jobs; returns how many tensors got other frames."""
    switched = 0
    while True:
        with reg.db.read() as session:
            waiting = queue.next_queued(session, kinds=["replan"])
        if not waiting:
            return switched
        job = waiting[0]
        with reg.db.write_beside() as session:
            assert queue.mark_running(session, job.id)
        switched += replan(reg, job.payload["revision_id"])
        with reg.db.write_beside() as session:
            queue.mark_done(session, job.id, {})


def replan(reg: Registry, revision: int) -> int:
    replanner = Replanner(reg, FileReader(reg), revision)
    position: int | None = 0
    switched = 0
    while position is not None:
        step = replanner.step(position)
        position, switched = step.next_position, switched + step.switched
    measure_affected(reg, revision)
    return switched


def stored_tensors(reg: Registry, revision: int) -> dict[str, Stored]:
    """name -> how it is stored, of a revision's safetensors files."""
    reader = FileReader(reg)
    found: dict[str, Stored] = {}
    with reg.db.read() as session:
        for file in session.scalars(safetensors_files(revision)):
            refs = named_tensors(reader, file)
            rows = resolve(session, file.domain_id, [ref.tensor for _, ref in refs])
            for name, ref in refs:
                found[name] = _stored(session, rows[ref.tensor])
    return found


def read_file(reg: Registry, revision: int, path: str) -> bytes:
    """The file's bytes as a download returns them."""
    with reg.db.read() as session:
        file = session.scalars(
            select(File)
            .join(Entry, Entry.file_id == File.id)
            .where(Entry.revision_id == revision, Entry.path == path)
        ).one()
    return b"".join(FileReader(reg).stream_file(file, 0, file.size))


def _stored(session: Session, row: Tensor) -> Stored:
    codec = session.scalars(select(Frame.codec).where(Frame.tensor_id == row.id).limit(1)).one()
    length = session.scalar(select(func.sum(Frame.length)).where(Frame.tensor_id == row.id))
    bases = session.scalars(select(TensorBase.base_id).where(TensorBase.tensor_id == row.id))
    return Stored(
        row.id, BY_NUMBER[codec].codec_id, row.size, length or 0, row.depth, frozenset(bases)
    )

"""Verifies recipes that clients send instead of a file's bytes, by rebuilding the file.

Before that, the file has no row, so an unverified file cannot be served, committed or shared.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import exists, select

from deltahub.codecs.files.recipe import Recipe, TensorRef
from deltahub.codecs.frames import tensor_spec
from deltahub.registry import failpoints
from deltahub.registry.db.models import File, Landing, Repository
from deltahub.registry.db.session import WriteSession
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import HashMismatch
from deltahub.registry.ingest.finish import VerifiedFile, attach_recipes, restore_hashes
from deltahub.registry.ingest.repair_tensors import TensorSource, repair_tensors
from deltahub.registry.jobs import queue
from deltahub.registry.jobs.progress import Progress, Report
from deltahub.registry.landings.condemned import delete_condemned
from deltahub.registry.landings.reader import LandingReader
from deltahub.registry.packs.holds import hold_for_job, hold_for_user, release_job
from deltahub.registry.packs.locations import resolve
from deltahub.registry.packs.switch import insert_tensors, store_and_switch
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.registry import Registry
from deltahub.registry.storage.checksums import Hashes
from deltahub.registry.uploads.discard import drop_landings, drop_unused
from deltahub.registry.uploads.landing import upload_not_found
from deltahub.registry.uploads.recipes import JOB_KIND, find_file, parse_recipe, recipe_key


def verify_recipe(
    reg: Registry,
    reader: FileReader,
    job_id: str,
    payload: Mapping[str, Any],
    *,
    report: Report = lambda stage, done, total: None,
    check_cancel: Callable[[], None] = lambda: None,
) -> None:
    """Rebuild a submitted recipe's file and make it committable for the sender; HashMismatch.

    payload: as submit_recipe wrote it. The job may be repeated, and interrupted at any line.
    """
    with reg.db.read() as session:
        landing = session.get(Landing, payload["landing_id"])
        repository = session.get(Repository, payload["repository_id"])
        if repository is None:
            return  # the repository was deleted: nobody needs the file
        if landing is None or landing.state != "complete":
            file = find_file(session, repository.domain_id, payload["sha256"])
            if file is not None and file.state != "lost":
                return  # an earlier run has finished
            raise upload_not_found(payload["sha256"])
    data = LandingReader(reg, landing.id).read_at(0, landing.size)
    recipe = parse_recipe(reg, data)

    progress = partial(Progress(report, check_cancel), "prove")
    # A new reader, because an older one has bytes in memory that the store may have lost.
    hashes = restore_hashes(FileReader(reg), repository.domain_id, recipe, progress)
    if hashes.sha256 != recipe.sha256.hex():
        with reg.db.write_beside(recipe_key(landing.id)) as session:
            release_job(session, job_id)
            dropped = _drop_upload(session, landing.id, job_id)
        delete_condemned(reg, dropped)
        raise HashMismatch(
            f"the recipe makes a file with SHA-256 {hashes.sha256}, not {recipe.sha256.hex()}"
        )
    recipe_id = recipe.id
    store_recipe(reg, reader, job_id, repository.domain_id, recipe_id, data)

    @retried
    def finish() -> list[str]:
        with reg.db.write_beside(recipe_key(landing.id)) as session:
            file, dropped = verified_file(session, repository.domain_id, recipe, recipe_id, hashes)
            hold_for_user(
                session,
                [file.recipe_tensor_id] if file.recipe_tensor_id is not None else [],
                payload["user_id"],
                repository.id,
                reg.settings.hold_ttl_s,
            )
            release_job(session, job_id)
            dropped += _drop_upload(session, landing.id, job_id)
            failpoints.reached("prove.finish.before_commit")
        return dropped

    dropped = finish()
    failpoints.reached("prove.finish.after_commit")
    delete_condemned(reg, dropped)


def _drop_upload(session: WriteSession, landing_id: str, job_id: str) -> list[str]:
    """Drop the recipe's upload, unless another job still has to verify it."""
    is_awaited = exists().where(
        Job.kind == JOB_KIND,
        Job.state.in_(queue.ACTIVE),
        Job.id != job_id,
        Job.payload["landing_id"].as_string() == landing_id,
    )
    if session.scalar(select(is_awaited)):
        return []
    return drop_unused(session, [landing_id])


def store_recipe(
    reg: Registry,
    reader: FileReader,
    job_id: str,
    domain_id: int,
    recipe_id: bytes,
    data: bytes,
) -> None:
    """Store the recipe's bytes as a tensor if they are not stored, and hold it for the job."""
    with reg.db.write_beside() as session:
        found = resolve(session, domain_id, [recipe_id])
        hold_for_job(session, (t.id for t in found.values()), job_id, reg.settings.hold_ttl_s)

    def read(first_byte: int, out: memoryview) -> None:
        out[:] = data[first_byte : first_byte + out.nbytes]

    if found:
        ref = TensorRef(recipe_id, len(data), "U8", (len(data),), None)
        repair_tensors(reg, reader, [TensorSource(domain_id, ref, read)], job_id)
        return

    def insert(session: WriteSession, sealed: SealedPacks) -> None:
        ids = insert_tensors(session, sealed, reg.settings.max_depth)
        hold_for_job(session, ids.values(), job_id, reg.settings.hold_ttl_s)

    with PackSpool(reg, reader, domain_id) as spool:
        spool.encode(tensor_spec(recipe_id, "U8", (len(data),)), read)
        store_and_switch(reg, spool, insert, only_adds=True)


def verified_file(
    session: WriteSession,
    domain_id: int,
    recipe: Recipe,
    recipe_id: bytes,
    hashes: Hashes,
) -> tuple[File, list[str]]:
    """The file's row, with its recipe, and ids of landings whose objects must be deleted.

    hashes: of the bytes that the recipe rebuilds. The recipe must be stored (store_recipe).
    """
    query = select(File).where(File.domain_id == domain_id, File.sha256 == hashes.sha256)
    file = session.scalar(query.with_for_update())  # a commit may need its upload meanwhile
    if file is not None and file.state == "ingested":
        return file, []
    if file is None:
        file = File(
            domain_id=domain_id,
            sha256=hashes.sha256,
            size=hashes.n_bytes,
            git_blob_id=hashes.git_blob_id,
            state="proving",
        )
        session.add(file)
        session.flush()  # assigns file.id
    attach_recipes(session, [VerifiedFile(file, recipe, recipe_id)])
    return file, drop_landings(session, [file])

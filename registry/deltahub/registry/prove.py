"""Recipes that clients send instead of a file's bytes: believed only once they were followed.

Until then there is no file row: nothing unproved can be served, committed or shared.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import exists, select

from deltahub.codecs.errors import CodecError
from deltahub.codecs.frame import tensor_spec
from deltahub.codecs.recipe import Recipe, TensorRef
from deltahub.registry import failpoints, jobs
from deltahub.registry.db.models import File, Job, Landing, Repository
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.encode import encode_tensor
from deltahub.registry.errors import (
    Conflict,
    HashMismatch,
    InvalidFrame,
    LimitExceeded,
    SizeMismatch,
    TensorNotFound,
)
from deltahub.registry.heal import Brought, heal
from deltahub.registry.holds import hold_for_job, hold_for_user, release_job
from deltahub.registry.ingest_plan import LandedFile
from deltahub.registry.landing import LandingStatus, receive, upload_not_found
from deltahub.registry.locations import PART_TENSORS, batches, resolve
from deltahub.registry.packs import PackSpool, frame_limit
from deltahub.registry.permissions import Caller, readable_file, require_writer
from deltahub.registry.progress import Progress, Report
from deltahub.registry.proof import (
    Proved,
    attach_recipes,
    delete_condemned,
    drop_landings,
    drop_unused,
    restore_hashes,
)
from deltahub.registry.publish import insert_tensors, make_live
from deltahub.registry.registry import Registry
from deltahub.registry.repositories import load_repository
from deltahub.registry.restore import Restorer
from deltahub.registry.spool import Hashes
from deltahub.registry.tensors import find_readable

JOB_KIND = "prove_recipe"
# Tensors that a refusal names.
SHOWN = 5
# How often a submitted recipe is kept anew when its upload goes with another job's end.
RECEIVED_AT_MOST = 3


@dataclass(frozen=True)
class Submitted:
    """`ready`: the file can be committed. `proving`: it can once the job is done."""

    state: str
    job_id: str | None


def submit_recipe(reg: Registry, caller: Caller | None, name: str, data: bytes) -> Submitted:
    """Say how to build a file of the repository from tensors that the hub has.

    TensorNotFound for tensors that are absent, not readable, or of another size; InvalidFrame for
    bytes that are no recipe; LimitExceeded.
    """
    caller = require_writer(caller)
    recipe = _parse(reg, data)
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "write")
        if _is_ready(reg, session, caller, repository, recipe):
            return Submitted("ready", None)
    tensors = _claim(reg, caller, name, recipe)
    job_id = jobs.new_id()
    _hold(reg, tensors, job_id)
    # Kept like an upload until the job has followed it.
    sha256 = hashlib.sha256(data).hexdigest()
    for _ in range(RECEIVED_AT_MOST):
        upload = receive(reg, caller, sha256, len(data), 0, [data], is_answer=False)
        submitted = _enqueue(reg, caller, name, recipe, upload, job_id)
        if submitted is not None:
            return submitted
    raise Conflict("other jobs keep finishing with this recipe; submit it again")


def _enqueue(
    reg: Registry,
    caller: Caller,
    name: str,
    recipe: Recipe,
    upload: LandingStatus,
    job_id: str,
) -> Submitted | None:
    """The job that follows a recipe; None if another job has let go of its upload meanwhile.

    job_id: what the recipe's tensors are held for, and what a job that is made here is called.
    """
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "write")
        if _is_ready(reg, session, caller, repository, recipe):
            release_job(session, job_id)
            return Submitted("ready", None)
        landing = session.get(Landing, upload.id)
        if landing is None or landing.state != "complete":
            return None
        other = _find_job(session, repository, upload.id)
        if other is not None:
            # It holds the same tensors: they are those of the same recipe.
            release_job(session, job_id)
            return Submitted("proving", other)
        jobs.enqueue(
            session,
            JOB_KIND,
            {
                "landing_id": upload.id,
                "sha256": recipe.sha256.hex(),
                "repository_id": repository.id,
                "user_id": caller.user_id,
            },
            repository.id,
            caller.user_id,
            job_id=job_id,
        )
    return Submitted("proving", job_id)


def _hold(reg: Registry, tensors: list[int], job_id: str) -> None:
    """Keep the tensors until the job is over, however late, before anybody can take it up.

    A crash before there is a job leaves holds that end by themselves.
    """
    for part in batches(tensors, PART_TENSORS):
        with reg.db.write() as session:
            hold_for_job(session, part, job_id, reg.settings.hold_ttl_s)


def prove_recipe(
    reg: Registry,
    job_id: str,
    payload: Mapping[str, Any],
    *,
    report: Report = lambda stage, done, total: None,
    check_cancel: Callable[[], None] = lambda: None,
    restorer: Restorer | None = None,
) -> None:
    """Follow a submitted recipe; its file can be committed by who sent it, or HashMismatch.

    payload: as submit_recipe wrote it. Safe to run twice, or to die at any line.
    """
    restorer = Restorer(reg) if restorer is None else restorer
    with reg.db.read() as session:
        landing = session.get(Landing, payload["landing_id"])
        repository = session.get(Repository, payload["repository_id"])
        if repository is None:
            return  # deleted meanwhile: nobody waits for the file
        if landing is None or landing.state != "complete":
            if _find_file(session, repository.domain_id, payload["sha256"]) is not None:
                return  # an earlier run came to its end
            raise upload_not_found(payload["sha256"])
    data = LandedFile(reg, landing.id, landing.sha256).read_at(0, landing.size)
    recipe = _parse(reg, data)

    progress = partial(Progress(report, check_cancel), "prove")
    hashes = restore_hashes(restorer, repository.domain_id, recipe, progress)
    if hashes.sha256 != recipe.sha256.hex():
        with reg.db.write() as session:
            release_job(session, job_id)
            dropped = _let_go(session, landing.id, job_id)
        delete_condemned(reg, dropped)
        raise HashMismatch(
            f"the recipe makes a file with SHA-256 {hashes.sha256}, not {recipe.sha256.hex()}"
        )
    recipe_id = recipe.id
    _store_recipe(reg, restorer, job_id, repository.domain_id, recipe_id, data)
    with reg.db.write() as session:
        file, dropped = _proved_file(session, repository, recipe, recipe_id, hashes)
        hold_for_user(
            session,
            [file.recipe_tensor_id] if file.recipe_tensor_id is not None else [],
            payload["user_id"],
            repository.id,
            reg.settings.hold_ttl_s,
        )
        release_job(session, job_id)
        dropped += _let_go(session, landing.id, job_id)
        failpoints.reached("prove.finish.before_commit")
    failpoints.reached("prove.finish.after_commit")
    delete_condemned(reg, dropped)


def _parse(reg: Registry, data: bytes) -> Recipe:
    if len(data) > reg.settings.max_recipe_bytes:
        limit = reg.settings.max_recipe_bytes
        raise LimitExceeded(f"a recipe of {len(data)} bytes; at most {limit} are allowed")
    try:
        recipe = Recipe.from_bytes(data)
    except CodecError as exc:
        raise InvalidFrame(f"this is no recipe: {exc}") from exc
    if recipe.size > reg.settings.max_file_bytes:
        limit = reg.settings.max_file_bytes
        raise LimitExceeded(f"the file has {recipe.size} bytes; this hub takes at most {limit}")
    # A few kilobytes that name one tensor again and again would keep a worker busy for hours.
    distinct = {ref.tensor: ref.size for ref in recipe.tensors()}
    repeated = sum(ref.size for ref in recipe.tensors()) - sum(distinct.values())
    if repeated > reg.settings.max_decoded_bytes:
        limit = reg.settings.max_decoded_bytes
        raise LimitExceeded(f"the recipe repeats {repeated} bytes; at most {limit} are allowed")
    return recipe


def _is_ready(
    reg: Registry, session: WriteSession, caller: Caller, repository: Repository, recipe: Recipe
) -> bool:
    """Whether the file can be committed as it is; if so it is held, as any other answer is."""
    file = readable_file(session, caller, repository, recipe.sha256.hex())
    if file is None:
        return False
    if file.size != recipe.size:
        raise SizeMismatch(f"{file.sha256} has {file.size} bytes, not {recipe.size}")
    held = [] if file.recipe_tensor_id is None else [file.recipe_tensor_id]
    hold_for_user(session, held, caller.user_id, repository.id, reg.settings.hold_ttl_s)
    return True


def _claim(reg: Registry, caller: Caller, name: str, recipe: Recipe) -> list[int]:
    """The rows of the recipe's tensors, held for the caller from now on.

    TensorNotFound; the same refusal for absent and for not readable.
    """
    sizes = {ref.tensor: ref.size for ref in recipe.tensors()}
    rows: list[int] = []
    wrong: list[bytes] = []
    for part in batches(sizes, PART_TENSORS):
        with reg.db.write() as session:
            repository = load_repository(session, caller, name, "write")
            found = find_readable(session, caller, repository, part)
            wrong += [t for t in part if t not in found or found[t].size != sizes[t]]
            ids = [tensor.id for tensor in found.values()]
            ttl_s = reg.settings.hold_ttl_s
            hold_for_user(session, ids, caller.user_id, repository.id, ttl_s)
        rows += ids
    if wrong or any(sizes[ref.tensor] != ref.size for ref in recipe.tensors()):
        shown = ", ".join(tensor.hex() for tensor in wrong[:SHOWN])
        raise TensorNotFound(
            f"{len(wrong)} tensors of the recipe are not here for you ({shown}); send them first"
        )
    return rows


def _find_job(session: ReadSession, repository: Repository, landing_id: str) -> str | None:
    """A job that has yet to begin with the same recipe for the same repository."""
    return session.scalar(
        select(Job.id).where(
            Job.kind == JOB_KIND,
            Job.state == "queued",
            Job.repository_id == repository.id,
            Job.payload["landing_id"].as_string() == landing_id,
        )
    )


def _let_go(session: WriteSession, landing_id: str, job_id: str) -> list[str]:
    """Drop the recipe's upload, unless another job has yet to follow it for its repository."""
    is_awaited = exists().where(
        Job.kind == JOB_KIND,
        Job.state.in_(jobs.ACTIVE),
        Job.id != job_id,
        Job.payload["landing_id"].as_string() == landing_id,
    )
    if session.scalar(select(is_awaited)):
        return []
    return drop_unused(session, [landing_id])


def _find_file(session: ReadSession, domain_id: int, sha256: str) -> File | None:
    return session.scalar(select(File).where(File.domain_id == domain_id, File.sha256 == sha256))


def _store_recipe(
    reg: Registry,
    restorer: Restorer,
    job_id: str,
    domain_id: int,
    recipe_id: bytes,
    data: bytes,
) -> None:
    """Store the recipe's bytes as a tensor, unless they are, and hold them for the job."""
    with reg.db.write() as session:
        found = resolve(session, domain_id, [recipe_id])
        hold_for_job(session, (t.id for t in found.values()), job_id, reg.settings.hold_ttl_s)

    def read(first_byte: int, out: memoryview) -> None:
        out[:] = data[first_byte : first_byte + out.nbytes]

    if found:
        ref = TensorRef(recipe_id, len(data), "U8", (len(data),), None)
        heal(reg, restorer, [Brought(domain_id, ref, read)], job_id)
        return
    with PackSpool(reg, domain_id, restorer) as spool:
        encode_tensor(
            spool,
            tensor_spec(recipe_id, "U8", (len(data),)),
            read,
            max_frame_bytes=frame_limit(reg.settings.pack_bytes),
        )
        sealed = spool.seal()
    with reg.db.write() as session:
        make_live(session, sealed)
        ids = insert_tensors(session, sealed, reg.settings.max_depth)
        hold_for_job(session, ids.values(), job_id, reg.settings.hold_ttl_s)


def _proved_file(
    session: WriteSession,
    repository: Repository,
    recipe: Recipe,
    recipe_id: bytes,
    hashes: Hashes,
) -> tuple[File, list[str]]:
    """The file's row, readable from a recipe, and landings whose objects are to be deleted."""
    file = _find_file(session, repository.domain_id, hashes.sha256)
    if file is not None and file.state == "ingested":
        return file, []
    if file is None:
        file = File(
            domain_id=repository.domain_id,
            sha256=hashes.sha256,
            size=hashes.n_bytes,
            git_blob_id=hashes.git_blob_id,
            state="proving",
        )
        session.add(file)
        session.flush()  # its id
    attach_recipes(session, [Proved(file, recipe, recipe_id)])
    return file, drop_landings(session, [file])

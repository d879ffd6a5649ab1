"""Accepts a client's recipe for a file, and enqueues the job that verifies it."""

import hashlib
from dataclasses import dataclass

from sqlalchemy import select

from deltahub.codecs.errors import CodecError
from deltahub.codecs.files.recipe import Recipe
from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.access.visibility import readable_file
from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.models import File, Landing, Repository
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import (
    Conflict,
    InvalidFrame,
    LimitExceeded,
    SizeMismatch,
    TensorNotFound,
)
from deltahub.registry.jobs import queue
from deltahub.registry.packs.holds import hold_for_job, hold_for_user, release_job
from deltahub.registry.registry import Registry
from deltahub.registry.uploads.known_files import mark_missing
from deltahub.registry.uploads.known_tensors import find_readable
from deltahub.registry.uploads.landing import LandingStatus, receive

JOB_KIND = "prove_recipe"


# Tensors that an error message names.
MAX_LISTED_TENSORS = 5


# Attempts to store a submitted recipe, if jobs that finish keep deleting its upload.
MAX_RECEIVE_ATTEMPTS = 3


@dataclass(frozen=True)
class Submitted:
    """state: `ready`, the file can be committed, or `proving`, it can after the job is done."""

    state: str
    job_id: str | None


def submit_recipe(reg: Registry, caller: Caller | None, name: str, data: bytes) -> Submitted:
    """Submit a recipe that builds a file for the repository from stored tensors.

    TensorNotFound if a tensor is missing, unreadable, or of another size; InvalidFrame if the bytes
    are no recipe; LimitExceeded.
    """
    caller = require_writer(caller)
    recipe = parse_recipe(reg, data)
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        known = readable_file(session, caller, repository, recipe.sha256.hex())
    mark_missing(reg, [] if known is None else [known])
    with reg.db.write_beside() as session:
        repository = load_repository(session, caller, name, "write")
        if _is_ready(reg, session, caller, repository, recipe):
            return Submitted("ready", None)
    tensors = _claim(reg, caller, name, recipe)
    job_id = queue.new_id()
    _hold(reg, tensors, job_id)
    # The recipe is stored like an upload until the job is done.
    sha256 = hashlib.sha256(data).hexdigest()
    for _ in range(MAX_RECEIVE_ATTEMPTS):
        upload = receive(reg, caller, sha256, len(data), 0, [data], is_acknowledged=False)
        submitted = _enqueue(reg, caller, name, recipe, upload, job_id)
        if submitted is not None:
            return submitted
    raise Conflict("other jobs keep finishing with this recipe; submit it again")


@retried
def _enqueue(
    reg: Registry,
    caller: Caller,
    name: str,
    recipe: Recipe,
    upload: LandingStatus,
    job_id: str,
) -> Submitted | None:
    """Enqueue the job for a recipe; None if another job has deleted the recipe's upload.

    job_id: the id of the new job, for which the recipe's tensors are held already.
    """
    with reg.db.write_beside(recipe_key(upload.id)) as session:
        repository = load_repository(session, caller, name, "write")
        if _is_ready(reg, session, caller, repository, recipe):
            release_job(session, job_id)
            return Submitted("ready", None)
        landing = session.get(Landing, upload.id)
        if landing is None or landing.state != "complete":
            return None
        other = _find_queued_job(session, repository, upload.id)
        if other is not None:
            # The other job has the same recipe, so it holds the same tensors.
            release_job(session, job_id)
            return Submitted("proving", other)
        queue.enqueue(
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
            size_bytes=recipe.size,
            job_id=job_id,
        )
    return Submitted("proving", job_id)


def _hold(reg: Registry, tensors: list[int], job_id: str) -> None:
    """Hold the tensors until the job is over. To be called before a worker can see the job.

    After a crash before the job was enqueued, the holds expire.
    """
    for part in batches(tensors, PART_TENSORS):
        with reg.db.write_beside() as session:
            hold_for_job(session, part, job_id, reg.settings.hold_ttl_s)


def parse_recipe(reg: Registry, data: bytes) -> Recipe:
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
    # A recipe of a few kilobytes that repeats one tensor could keep a worker busy for hours.
    distinct = {ref.tensor: ref.size for ref in recipe.tensors()}
    repeated = sum(ref.size for ref in recipe.tensors()) - sum(distinct.values())
    if repeated > reg.settings.max_decoded_bytes:
        limit = reg.settings.max_decoded_bytes
        raise LimitExceeded(f"the recipe repeats {repeated} bytes; at most {limit} are allowed")
    return recipe


def _is_ready(
    reg: Registry, session: WriteSession, caller: Caller, repository: Repository, recipe: Recipe
) -> bool:
    """Whether the file can be committed already. If so, it is held for the caller."""
    file = readable_file(session, caller, repository, recipe.sha256.hex())
    if file is None:
        return False
    if file.size != recipe.size:
        raise SizeMismatch(f"{file.sha256} has {file.size} bytes, not {recipe.size}")
    held = [] if file.recipe_tensor_id is None else [file.recipe_tensor_id]
    hold_for_user(session, held, caller.user_id, repository.id, reg.settings.hold_ttl_s)
    return True


def _claim(reg: Registry, caller: Caller, name: str, recipe: Recipe) -> list[int]:
    """Row ids of the recipe's tensors, which are held for the caller.

    TensorNotFound, with the same text for missing and for unreadable tensors.
    """
    sizes = {ref.tensor: ref.size for ref in recipe.tensors()}
    rows: list[int] = []
    wrong: list[bytes] = []
    for part in batches(sizes, PART_TENSORS):
        cancellation.check()
        with reg.db.write_beside() as session:
            repository = load_repository(session, caller, name, "write")
            found = find_readable(session, caller, repository, part)
            wrong += [t for t in part if t not in found or found[t].size != sizes[t]]
            ids = [tensor.id for tensor in found.values()]
            ttl_s = reg.settings.hold_ttl_s
            hold_for_user(session, ids, caller.user_id, repository.id, ttl_s)
        rows += ids
    if wrong or any(sizes[ref.tensor] != ref.size for ref in recipe.tensors()):
        shown = ", ".join(tensor.hex() for tensor in wrong[:MAX_LISTED_TENSORS])
        raise TensorNotFound(
            f"{len(wrong)} tensors of the recipe are not here for you ({shown}); send them first"
        )
    return rows


def recipe_key(landing_id: str) -> str:
    """Of writers to the jobs that read a recipe's upload, and of the one that drops it."""
    return f"recipe {landing_id}"


def _find_queued_job(session: ReadSession, repository: Repository, landing_id: str) -> str | None:
    """A queued job with the same recipe for the same repository."""
    return session.scalar(
        select(Job.id).where(
            Job.kind == JOB_KIND,
            Job.state == "queued",
            Job.repository_id == repository.id,
            Job.payload["landing_id"].as_string() == landing_id,
        )
    )


def find_file(session: ReadSession, domain_id: int, sha256: str) -> File | None:
    return session.scalar(select(File).where(File.domain_id == domain_id, File.sha256 == sha256))

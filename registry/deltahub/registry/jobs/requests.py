"""Requests of users about jobs: show, list and cancel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import and_, func, or_, select

from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.permissions import allowed, full_name
from deltahub.registry.db.batches import batches
from deltahub.registry.db.columns import UtcDateTime
from deltahub.registry.db.models import Namespace, Repository, Revision, User
from deltahub.registry.db.paging.keyset import Asked, Page, read_page
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.jobs import Job, JobLine
from deltahub.registry.errors import InvalidRequest, JobFailed, JobNotFound, RegistryError
from deltahub.registry.jobs import health, queue
from deltahub.registry.leases import signs_of_life
from deltahub.registry.names import quoted
from deltahub.registry.registry import Registry

# The part of a result that shows inputs of a model's task, made up like its private ones.
_TASK_INPUTS: Final = "disagreements"
# The argument in which a user has given some.
_GIVEN_INPUTS: Final = "prompts"


@dataclass(frozen=True)
class JobInfo:
    """A job, for callers who may see it.

    payload, result: without inputs of a task that the caller may not see. error: why it failed; of
    a queued job, why its last attempt did. waits_for: what an unfinished job waits for; None while
    it runs.
    """

    id: str
    kind: str
    state: str
    payload: Mapping[str, Any]
    progress: Mapping[str, Any] | None  # {"stage", "done_bytes", "total_bytes", "fraction"}
    result: Mapping[str, Any] | None
    error_code: str | None
    error: str | None
    is_cancel_asked: bool
    attempts: int  # those that failed and were repeated
    retry_at: datetime | None
    waits_for: str | None
    queue: str  # io, cpu or gpu
    size_bytes: int  # to read, as estimated when it was made
    repository: str | None
    user: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True)
class LogLine:
    """A line of a job's log. number: grows from line to line."""

    number: int
    at: datetime
    text: str


def get_job(reg: Registry, caller: Caller | None, job_id: str) -> JobInfo:
    """The job, if the caller owns it or may write to its repository; JobNotFound."""
    with reg.db.read() as session:
        return _info(reg, session, caller, visible_job(session, caller, job_id))


def cancel_job(reg: Registry, caller: Caller | None, job_id: str) -> JobInfo:
    """Cancel a queued job or ask a running job to stop. A finished job does not change."""
    user = require_writer(caller)
    with reg.db.write_beside() as session:
        job = visible_job(session, caller, job_id)
        session.refresh(job, with_for_update=True)  # a worker may be taking it
        queue.ask_to_stop(session, job)
        return _info(reg, session, user, job)


def list_jobs(
    reg: Registry,
    caller: Caller | None,
    state: str | None = None,
    repository_id: int | None = None,
    limit: int = 100,
    before: str | None = None,
    kind: str | None = None,
    user: str | None = None,
) -> list[JobInfo]:
    """The caller's jobs, newest first; all jobs for a superuser.

    state, kind, user: only of this one. before: the id of the last job of an earlier page.
    """
    if state is not None and state not in queue.STATES:
        raise InvalidRequest(f"{quoted(state)} is no state: one of {', '.join(queue.STATES)}")
    query = select(Job).order_by(Job.created_at.desc(), Job.id.desc()).limit(limit)
    if state is not None:
        query = query.where(Job.state == state)
    if kind is not None:
        query = query.where(Job.kind == kind)
    if repository_id is not None:
        query = query.where(Job.repository_id == repository_id)
    if caller is None:
        return []
    if not caller.is_superuser:
        query = query.where(Job.user_id == caller.user_id)
    if user is not None:
        query = query.where(Job.user_id.in_(select(User.id).where(User.name == user)))
    with reg.db.read() as session:
        if before is not None:
            last = visible_job(session, caller, before)
            is_older = or_(
                Job.created_at < last.created_at,
                and_(Job.created_at == last.created_at, Job.id < last.id),
            )
            query = query.where(is_older)
        return _infos(reg, session, caller, session.scalars(query).all())


def page_of_jobs(
    reg: Registry, caller: Caller, asked: Asked, *, state: str = "", kind: str = "", user: str = ""
) -> Page[JobInfo]:
    """A page of the caller's jobs, or of all for a superuser, by the time they were made.

    state, kind, user: only of this one; empty: of any. InvalidRequest for what is no state.
    """
    if state and state not in queue.STATES:
        raise InvalidRequest(f"{quoted(state)} is no state: one of {', '.join(queue.STATES)}")
    query = select(Job)
    if state:
        query = query.where(Job.state == state)
    if kind:
        query = query.where(Job.kind == kind)
    if user:
        query = query.where(Job.user_id.in_(select(User.id).where(User.name == user)))
    if not caller.is_superuser:
        query = query.where(Job.user_id == caller.user_id)
    finished = func.coalesce(Job.finished_at, Job.created_at, type_=UtcDateTime())
    columns = {"created": Job.created_at, "finished": finished, "size": Job.size_bytes}
    with reg.db.read() as session:
        page = read_page(session, query, columns, Job.id, asked)
        return Page(_infos(reg, session, caller, [job for job, *_ in page.items]), page.after)


def log_of(
    reg: Registry, caller: Caller | None, job_id: str, after: int = 0, limit: int = 1000
) -> list[LogLine]:
    """Lines of the job's log, oldest first; JobNotFound. after: number of the last line seen."""
    with reg.db.read() as session:
        visible_job(session, caller, job_id)
        query = (
            select(JobLine)
            .where(JobLine.job_id == job_id, JobLine.id > after)
            .order_by(JobLine.id)
            .limit(limit)
        )
        return [LogLine(line.id, line.at, line.text) for line in session.scalars(query)]


def error_of(job: JobInfo) -> RegistryError | None:
    """The error of a job that ended without its result; None while it runs, and if it is done."""
    if job.state not in ("failed", "cancelled"):
        return None
    classes = [RegistryError]
    for found in classes:  # subclasses are appended during the loop
        classes += found.__subclasses__()
    message = job.error or f"the job was {job.state}"
    return {found.code: found for found in classes}.get(job.error_code or "", JobFailed)(message)


def visible_job(session: ReadSession, caller: Caller | None, job_id: str) -> Job:
    """The row, if the caller may see the job; JobNotFound."""
    job = session.get(Job, job_id)
    if job is None or caller is None or not _may_see(session, caller, job):
        raise JobNotFound(f"there is no job {quoted(job_id)}, or you may not see it")
    return job


def _may_see(session: ReadSession, caller: Caller, job: Job) -> bool:
    # Read permission is not enough, because results name bases that readers may not know.
    if caller.is_superuser or job.user_id == caller.user_id:
        return True
    if job.repository_id is None:
        return False
    return allowed(session, caller, "write", session.get_one(Repository, job.repository_id))


def _infos(
    reg: Registry, session: ReadSession, caller: Caller, jobs: Sequence[Job]
) -> list[JobInfo]:
    # Held until all are told: a session forgets rows that nobody holds, and asks for each again.
    held: list[object] = []
    for part in batches(jobs):
        repositories = session.scalars(
            select(Repository).where(Repository.id.in_({job.repository_id for job in part}))
        ).all()
        spaces = {each.namespace_id for each in repositories}
        held += repositories
        held += session.scalars(select(Namespace).where(Namespace.id.in_(spaces)))
        held += session.scalars(select(User).where(User.id.in_({job.user_id for job in part})))
    return [_info(reg, session, caller, job) for job in jobs]


def _info(reg: Registry, session: ReadSession, caller: Caller | None, job: Job) -> JobInfo:
    repository = (
        None if job.repository_id is None else session.get_one(Repository, job.repository_id)
    )
    user = None if job.user_id is None else session.get_one(User, job.user_id)
    return JobInfo(
        id=job.id,
        kind=job.kind,
        state=job.state,
        payload=_payload_for(caller, job),
        progress=job.progress,
        result=_result_for(session, caller, job),
        error_code=job.error_code,
        error=job.error,
        is_cancel_asked=job.is_cancel_asked,
        attempts=job.attempts,
        retry_at=job.retry_at,
        waits_for=_waits_for(reg, job),
        queue=_queue_of(job),
        size_bytes=job.size_bytes,
        repository=None if repository is None else full_name(session, repository),
        user=None if user is None else user.name,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )


def _payload_for(caller: Caller | None, job: Job) -> Mapping[str, Any]:
    """What the job was asked for, without inputs of a task that its user has given, unless the
    caller is that user: others may see the job, because they may write to what it makes.
    """
    arguments = job.payload.get("arguments")
    if not isinstance(arguments, Mapping) or arguments.get(_GIVEN_INPUTS) is None:
        return job.payload
    if _is_own(caller, job):
        return job.payload
    return {**job.payload, "arguments": {**arguments, _GIVEN_INPUTS: None}}


def _is_own(caller: Caller | None, job: Job) -> bool:
    return caller is not None and (caller.is_superuser or job.user_id == caller.user_id)


def _result_for(session: ReadSession, caller: Caller | None, job: Job) -> Mapping[str, Any] | None:
    """The job's result, without the inputs of a task if the caller may not see these.

    Inputs that are made up like those of a kit are for writers of the repository that has the kit,
    which is not the job's; inputs like those of the argument `prompts` are for the job's user.
    """
    result = job.result
    if result is None or _TASK_INPUTS not in result:
        return result
    if job.payload["arguments"].get(_GIVEN_INPUTS) is not None:
        may_see = _is_own(caller, job)
    else:
        model = session.get(Revision, job.payload["revisions"][0])
        may_see = model is not None and allowed(
            session, caller, "write", session.get_one(Repository, model.repository_id)
        )
    if may_see:
        return result
    return {key: value for key, value in result.items() if key != _TASK_INPUTS}


def _waits_for(reg: Registry, job: Job) -> str | None:
    if job.state not in queue.ACTIVE:
        return None
    problem = health.worker_problem(reg)
    if problem is not None:
        return f"a worker: {problem}"
    if job.state == "running":
        return None
    served = signs_of_life.served_queues(reg)
    needed = _queue_of(job)
    if served is not None and needed not in served:
        return (
            f"a worker that runs the queue {needed}: the operator starts one with"
            f" `deltahub worker --queues {needed}`"
        )
    if job.error is not None:
        again = "" if job.retry_at is None else f" at {job.retry_at:%H:%M:%S} UTC"
        return f"its next attempt{again}, because the last one failed: {job.error}"
    return "its turn: other jobs run before it"


def _queue_of(job: Job) -> str:
    (name,) = (name for name, lane in queue.QUEUES.items() if lane == job.lane)
    return name

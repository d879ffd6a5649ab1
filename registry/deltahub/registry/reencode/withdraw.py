"""Makes a repository private, or deletes it, once no delta outside reveals its tensors.

A fine-tune that is stored as a delta of a public base reveals the base to everybody who may read
the fine-tune. So such deltas are stored without the base first, by a job: each is encoded again
against another base or standalone, read back, verified and switched. One transaction then checks
again that none is left, and changes the repository. Until then the repository stays as it is, also
after an error or a kill; a repeated request continues.
"""

import logging
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from sqlalchemy import select

from deltahub.registry.access.caller import Caller, Scope, require_writer
from deltahub.registry.access.permissions import full_name, require
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.adapters.kits import has_kit
from deltahub.registry.catalog import repositories
from deltahub.registry.catalog.weights import named_tensors, safetensors_files
from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import (
    PUBLIC_DOMAIN_KEY,
    Domain,
    Ref,
    Repository,
    Revision,
    Tensor,
    User,
)
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Conflict, DataLost, DeltaCycle, EntryNotFound
from deltahub.registry.failpoints import reached
from deltahub.registry.jobs import queue
from deltahub.registry.jobs.progress import Progress
from deltahub.registry.packs.reading.chain import TensorGone
from deltahub.registry.packs.switch import BaseGone
from deltahub.registry.reencode.dependents import (
    count_models,
    end_holds,
    find_dependents,
    has_dependents,
    revision_outside,
)
from deltahub.registry.reencode.replace_bases import BaseReplacer, Delta
from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)

Change = Literal["private", "delete"]


@dataclass(frozen=True)
class WithdrawStep:
    """The outcome of a step. revision_id: a revision whose tensors have other frames now."""

    is_last: bool
    revision_id: int | None = None


@dataclass(frozen=True)
class Untouched:
    """What a repository has to be still when it is deleted: this row, whose only branch is at this
    commit, without a tag or a kit.
    """

    repository_id: int
    commit: str

    def require(self, session: ReadSession, repository: Repository) -> None:
        """Conflict if somebody has changed it since."""
        query = select(Revision.commit).join(Ref, Ref.revision_id == Revision.id)
        commits = list(session.scalars(query.where(Ref.repository_id == repository.id)))
        is_same = repository.id == self.repository_id and commits == [self.commit]
        if not is_same or has_kit(session, repository.id):
            raise Conflict("somebody has changed it since")


@dataclass(frozen=True)
class Withdrawal:
    """A change that waits for a job. models: how many the job stores without the repository.

    Private models of other namespaces do not count, because the caller must not learn of them.
    """

    job_id: str
    models: int


def withdraw(
    reg: Registry,
    caller: Caller | None,
    name: str,
    change: Change,
    untouched: Untouched | None = None,
) -> Withdrawal | None:
    """Make the repository private, or delete it; None if that is done.

    Otherwise other models have to be stored without it first. The job of the result does that and
    then the change. A repeated request returns the job that runs already.

    untouched: Conflict if the repository is another; the job looks again in the transaction that
    changes it, because it may take hours.
    """
    caller = require_writer(caller)
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "admin")
        dependents = find_dependents(session, repository)
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "admin")
        session.refresh(repository, with_for_update=True)
        if untouched is not None:
            untouched.require(session, repository)
        if change == "private" and repository.is_private:
            return None
        dependents = dependents or find_dependents(session, repository)
        if not dependents:
            _change(session, caller, repository, change)
            return None
        commit = None if untouched is None else untouched.commit
        job_id = _find_job(session, repository, change, commit)
        if job_id is None:
            payload = {"change": change, "scope": caller.scope, "commit": commit}
            job_id = queue.enqueue(session, queue.WITHDRAW, payload, repository.id, caller.user_id)
        models = count_models(session, caller, repository, dependents)
    return Withdrawal(job_id, models)


def _find_job(
    session: ReadSession, repository: Repository, change: Change, commit: str | None
) -> str | None:
    """A job that waits or runs, and does the change under the same condition."""
    return session.scalar(
        select(Job.id).where(
            Job.repository_id == repository.id,
            Job.kind == queue.WITHDRAW,
            Job.state.in_(queue.ACTIVE),
            Job.is_cancel_asked.is_(False),
            Job.payload["change"].as_string() == change,
            Job.payload["commit"].as_string() == commit,
        )
    )


def _change(
    session: WriteSession,
    caller: Caller,
    repository: Repository,
    change: Change,
    job_id: str | None = None,
) -> None:
    """Change the repository in this transaction. job_id: the job that does it."""
    end_holds(session, repository)
    name = full_name(session, repository)
    if change == "private":
        repositories.hide(session, caller, repository, name)
    else:
        repositories.remove(session, caller, repository, name, job_id)
    reached("withdraw.before_commit")


class WithdrawJob:
    """The work of one job, in steps. It may be killed at any time and run again."""

    def __init__(
        self, reg: Registry, reader: FileReader, job_id: str, change: Change, scope: Scope
    ) -> None:
        """scope: of the token that asked for the change."""
        self._reg = reg
        self._reader = reader
        self._job_id = job_id
        self._change: Change = change
        self._scope: Scope = scope
        self._replacer = BaseReplacer(reg, reader)
        self._todo: deque[int] = deque()
        # Of public tensors only: the progress must not reveal private models of others.
        self._done_bytes = 0
        self._total_bytes = 0

    def step(self, progress: Progress) -> WithdrawStep:
        """Store about a pack of deltas without the repository's tensors, or do the change.

        StorageFull, DataLost, Forbidden: the repository stays as it is.
        """
        if not self._todo:
            with self._reg.db.read() as session:
                repository = self._repository(session)
                if repository is None:
                    return WithdrawStep(is_last=True)
                self._load(session, find_dependents(session, repository))
        if not self._todo:
            return WithdrawStep(is_last=self._finish())
        revision, deltas = self._next_deltas()
        if deltas:
            self._store(deltas, revision, progress)
        return WithdrawStep(is_last=False, revision_id=revision)

    def _load(self, session: ReadSession, dependents: Iterable[int]) -> None:
        """Set the work, the oldest tensors first: younger ones may become deltas of them."""
        self._todo = deque(sorted(dependents))
        self._total_bytes = self._done_bytes
        for batch in batches(self._todo):
            size = (
                select(total(Tensor.size))
                .join(Domain, Domain.id == Tensor.domain_id)
                .where(Tensor.id.in_(batch), Domain.key == PUBLIC_DOMAIN_KEY)
            )
            self._total_bytes += session.scalar(size) or 0

    def _repository(self, session: ReadSession) -> Repository | None:
        """The repository; None if it was deleted or is private already."""
        job = session.get_one(Job, self._job_id)
        found = None if job.repository_id is None else session.get(Repository, job.repository_id)
        is_done = found is None or (self._change == "private" and found.is_private)
        return None if is_done else found

    def _next_deltas(self) -> tuple[int | None, list[Delta]]:
        """The first deltas of the work, all of one domain, and a revision that names them."""
        found = self._reader.locate(islice(self._todo, PART_TENSORS))
        first = found.get(self._todo[0])
        if first is None:  # deleted since
            self._todo.popleft()
            return None, []
        with self._reg.db.read() as session:
            repository = self._repository(session)
            revision = None
            if repository is not None:
                revision = revision_outside(session, repository, first.id, first.domain_id)
            files = [] if revision is None else list(session.scalars(safetensors_files(revision)))
        waiting = {
            location.hash: location
            for tensor in self._todo
            if (location := found.get(tensor)) is not None and location.domain_id == first.domain_id
        }
        deltas: dict[bytes, Delta] = {}
        for file in files:
            with suppress(EntryNotFound):  # deleted since
                for name, ref in named_tensors(self._reader, file):
                    if (location := waiting.get(ref.tensor)) is not None:
                        named = Delta(location, name, ref.dtype, tuple(ref.shape))
                        deltas.setdefault(ref.tensor, named)
        if first.hash not in deltas:  # no model names it
            return None, [Delta(first)]
        return revision, list(deltas.values())

    def _store(self, deltas: list[Delta], revision: int | None, progress: Progress) -> None:
        """Store the first of these deltas again, and remove them from the work."""
        with self._reg.db.read() as session:
            domain = session.get_one(Domain, deltas[0].location.domain_id)
            is_public = domain.key == PUBLIC_DOMAIN_KEY
        done = 0

        def count(n: int) -> None:
            nonlocal done
            done += n if is_public else 0
            progress("withdraw", min(self._done_bytes + done, self._total_bytes), self._total_bytes)

        try:
            try:
                rows = self._replacer.store(deltas, revision, count)
            except (BaseGone, DeltaCycle, TensorGone) as exc:
                # A base was deleted or became deeper after it was chosen.
                log.info("job=%s stores deltas without bases: %s", self._job_id, exc)
                done = 0
                rows = self._replacer.store(deltas, None, count)
        except DataLost:
            rows = self._lost_among(deltas)
            if not rows:
                raise
        self._done_bytes += done
        self._todo = deque(tensor for tensor in self._todo if tensor not in rows)

    def _lost_among(self, deltas: list[Delta]) -> set[int]:
        """The deltas that turned out to be unreadable, which find_dependents leaves out."""
        ids = [delta.location.id for delta in deltas]
        with self._reg.db.read() as session:
            query = select(Tensor.id).where(Tensor.id.in_(ids), Tensor.lost.is_not(None))
            return set(session.scalars(query))

    def _finish(self) -> bool:
        """Do the change; False if new deltas came in the meantime."""
        reached("withdraw.before_change")
        with self._reg.db.write() as session:
            repository = self._repository(session)
            if repository is None:
                return True
            session.refresh(repository, with_for_update=True)
            if has_dependents(session, repository):
                return False
            job = session.get_one(Job, self._job_id)
            if (commit := job.payload.get("commit")) is not None:
                Untouched(repository.id, commit).require(session, repository)
            user = None if job.user_id is None else session.get(User, job.user_id)
            if user is None:
                raise Conflict("the user who asked for this was deleted; ask again as another one")
            caller = Caller(user.id, user.name, user.is_admin, self._scope)
            require(session, caller, "admin", repository)
            _change(session, caller, repository, self._change, self._job_id)
        reached("withdraw.after_commit")
        return True

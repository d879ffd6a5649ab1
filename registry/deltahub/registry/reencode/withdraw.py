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
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Literal

from sqlalchemy import select
from sqlalchemy.exc import NoResultFound

from deltahub.codecs.frames import TensorSpec, tensor_spec
from deltahub.registry.access.caller import Caller, Scope, require_writer
from deltahub.registry.access.permissions import full_name, require
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.bases.planner import BaseChoice, BasePlanner, ReplannedTensor
from deltahub.registry.catalog import repositories
from deltahub.registry.catalog.weights import named_tensors, safetensors_files
from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import Job, Repository, Tensor, User
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Conflict, DeltaCycle, EntryNotFound
from deltahub.registry.failpoints import reached
from deltahub.registry.jobs import queue
from deltahub.registry.jobs.progress import Progress
from deltahub.registry.packs.locations import TensorLocation, is_unchanged, locate
from deltahub.registry.packs.switch import BaseGone, store_and_switch, switch_tensor
from deltahub.registry.packs.tensor_reader import TensorGone
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.reencode.dependents import (
    count_models,
    end_holds,
    find_dependents,
    has_dependents,
    revision_outside,
)
from deltahub.registry.reencode.replan import dependent_deltas
from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)

Change = Literal["private", "delete"]

# Packs of decoded bytes in one step, so that a kill loses little work.
_PACKS_PER_STEP: Final = 2


@dataclass(frozen=True)
class Withdrawal:
    """A change that waits for a job. models: stored as differences from the repository."""

    job_id: str
    models: int


def withdraw(reg: Registry, caller: Caller | None, name: str, change: Change) -> Withdrawal | None:
    """Make the repository private, or delete it; None if that is done.

    Otherwise other models have to be stored without it first. The job of the result does that and
    then the change. A repeated request returns the job that runs already.
    """
    caller = require_writer(caller)
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "admin")
        dependents = find_dependents(session, repository)
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "admin")
        session.refresh(repository, with_for_update=True)
        if change == "private" and repository.is_private:
            return None
        dependents = dependents or find_dependents(session, repository)
        if not dependents:
            _change(session, caller, repository, change)
            return None
        job_id = _find_job(session, repository, change)
        if job_id is None:
            payload = {"change": change, "scope": caller.scope}
            job_id = queue.enqueue(session, queue.WITHDRAW, payload, repository.id, caller.user_id)
        models = count_models(session, repository, dependents)
    return Withdrawal(job_id, models)


def _find_job(session: ReadSession, repository: Repository, change: Change) -> str | None:
    return session.scalar(
        select(Job.id).where(
            Job.repository_id == repository.id,
            Job.kind == queue.WITHDRAW,
            Job.state.in_(queue.ACTIVE),
            Job.is_cancel_asked.is_(False),
            Job.payload["change"].as_string() == change,
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


@dataclass(frozen=True)
class WithdrawStep:
    """The outcome of a step. revisions: those whose tensors have other frames now."""

    is_last: bool
    switched: int = 0
    revisions: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Delta:
    """A delta to store without its base. name, dtype, shape: None for a tensor without a name."""

    location: TensorLocation
    name: str | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()


class Withdrawing:
    """The work of one job, in steps that may be repeated and killed at any time."""

    def __init__(
        self, reg: Registry, reader: FileReader, job_id: str, change: Change, scope: Scope
    ) -> None:
        self._reg = reg
        self._reader = reader
        self._job_id = job_id
        self._change: Change = change
        self._scope: Scope = scope
        self._todo: deque[int] | None = None
        self._done_bytes = 0
        self._total_bytes = 0
        self._planner: BasePlanner | None = None
        self._planner_revision: int | None = None

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
        revision, deltas = self._next_deltas(self._todo)
        try:
            switched = self._store(deltas, revision, progress)
        except (BaseGone, DeltaCycle, TensorGone) as exc:
            # A base was deleted or became deeper after it was chosen.
            log.info("job=%s stores deltas without bases: %s", self._job_id, exc)
            switched = self._store(deltas, None, progress)
        reached("withdraw.switch.after_commit")
        return WithdrawStep(False, switched, () if revision is None else (revision,))

    def _load(self, session: ReadSession, dependents: Iterable[int]) -> None:
        """Set the work, the oldest tensors first: younger ones may become deltas of them."""
        self._todo = deque(sorted(dependents))
        size = 0
        for batch in batches(self._todo):
            size += session.scalar(select(total(Tensor.size)).where(Tensor.id.in_(batch))) or 0
        self._total_bytes = self._done_bytes + size

    def _repository(self, session: ReadSession) -> Repository | None:
        """The repository; None if it was deleted or is private already."""
        job = session.get_one(Job, self._job_id)
        found = None if job.repository_id is None else session.get(Repository, job.repository_id)
        is_done = found is None or (self._change == "private" and found.is_private)
        return None if is_done else found

    def _finish(self) -> bool:
        """Do the change; False if new deltas came in the meantime."""
        reached("withdraw.before_change")
        with self._reg.db.write() as session:
            repository = self._repository(session)
            if repository is None:
                return True
            if has_dependents(session, repository):
                return False
            user_id = session.get_one(Job, self._job_id).user_id
            user = None if user_id is None else session.get(User, user_id)
            if user is None:
                raise Conflict("the user who asked for this was deleted; ask again as another one")
            caller = Caller(user.id, user.name, user.is_admin, self._scope)
            require(session, caller, "admin", repository)
            _change(session, caller, repository, self._change, self._job_id)
        reached("withdraw.after_commit")
        return True

    def _next_deltas(self, todo: deque[int]) -> tuple[int | None, list[_Delta]]:
        """The first deltas of the work, and the revision outside that names them; in one domain."""
        found = self._reader.locate(list(todo)[:PART_TENSORS])
        first = found.get(todo[0])
        if first is None:  # deleted since
            todo.popleft()
            return None, []
        with self._reg.db.read() as session:
            repository = self._repository(session)
            revision = None
            if repository is not None:
                revision = revision_outside(session, repository, first.id, first.domain_id)
            files = [] if revision is None else list(session.scalars(safetensors_files(revision)))
        waiting = {
            location.hash: location
            for tensor in todo
            if (location := found.get(tensor)) is not None and location.domain_id == first.domain_id
        }
        deltas: dict[bytes, _Delta] = {}
        for file in files:
            with suppress(EntryNotFound):  # deleted since
                for name, ref in named_tensors(self._reader, file):
                    if (location := waiting.get(ref.tensor)) is not None:
                        named = _Delta(location, name, ref.dtype, tuple(ref.shape))
                        deltas.setdefault(ref.tensor, named)
        if first.hash not in deltas:  # no model names it
            return None, [_Delta(first)]
        return revision, list(deltas.values())

    def _store(self, deltas: list[_Delta], revision: int | None, progress: Progress) -> int:
        """Store the first of these deltas again, and remove them from the work; how many changed.

        revision: bases are chosen for it; None for no bases.
        """
        taken: list[_Delta] = []
        n_bytes, switched = 0, 0
        pack_bytes = self._reg.settings.pack_bytes

        def switch(session: WriteSession, sealed: SealedPacks) -> None:
            nonlocal switched
            now = locate(session, [each.location.id for each in taken])
            for each in taken:
                row = each.location
                if is_unchanged(row, now.get(row.id)):  # else another job has stored it
                    new = sealed.tensors[row.hash]
                    max_depth = self._reg.settings.max_depth
                    switch_tensor(session, row.id, new.frames, new.bases, max_depth)
                    switched += 1
            reached("withdraw.switch.before_commit")

        if deltas:
            domain_id = deltas[0].location.domain_id
            with PackSpool(self._reg, self._reader, domain_id) as spool:
                for each in deltas:
                    is_full = spool.size_bytes >= pack_bytes // 2 or len(taken) == PART_TENSORS
                    if is_full or n_bytes >= _PACKS_PER_STEP * pack_bytes:
                        break
                    taken.append(each)
                    n_bytes += each.location.size
                    self._encode(spool, each, revision, progress)
                store_and_switch(self._reg, spool, switch)
        self._done_bytes += n_bytes
        rows = {each.location.id for each in taken}
        assert self._todo is not None, "the deltas were taken from the work"
        self._todo = deque(tensor for tensor in self._todo if tensor not in rows)
        return switched

    def _encode(
        self, spool: PackSpool, delta: _Delta, revision: int | None, progress: Progress
    ) -> None:
        location = delta.location
        read = partial(self._reader.read_tensor_into, location.id)
        if delta.name is None:
            header = self._reader.frames.open(location.frames[0]).view.header
            spec = TensorSpec(location.hash, header.dtype, 1, header.tensor_count)
        else:
            spec = tensor_spec(location.hash, delta.dtype, delta.shape)
        choice = None if revision is None else self._choose(delta, revision)
        done = self._done_bytes

        def report(n: int) -> None:
            nonlocal done
            done += n
            progress("withdraw", min(done, self._total_bytes), self._total_bytes)

        report(0)
        spool.encode(spec, read, None if choice is None else choice.frame_plan, report)

    def _choose(self, delta: _Delta, revision: int) -> BaseChoice | None:
        if delta.name is None:
            return None
        try:
            if self._planner is None or self._planner_revision != revision:
                self._planner = BasePlanner(self._reg, self._reader, revision)
                self._planner_revision = revision
        except NoResultFound:
            return None  # the revision has just been deleted
        with self._reg.db.read() as session:
            height = dependent_deltas(session, delta.location.id)
        if height is None:
            return None
        read = partial(self._reader.read_tensor_into, delta.location.id)
        stored = ReplannedTensor(delta.location.id, height)
        return self._planner.plan(delta.name, delta.dtype, delta.shape, read, stored)

"""Steps of a run: commits of `main` that have a number, each on top of the step before.

A run is an ordinary repository. A step is a ref of a kind of its own, which the transaction of its
commit makes: other than a tag, it does not keep its revision from a rule of retention, and nobody
can move it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import func, select

from deltahub.registry.catalog.operations import AddFile, Operation
from deltahub.registry.catalog.trees.read import Tree
from deltahub.registry.db.models import Ref, Repository, Revision
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.errors import Conflict, InvalidRequest, RefMoved
from deltahub.registry.names import quoted

KIND: Final = "step"
# Numbers have this many digits in rows, so that the order of names is the order of steps.
_DIGITS: Final = 12
MAX_STEP: Final = 10**_DIGITS - 1
PAGE_STEPS: Final = 1000
_NAME: Final = re.compile(r"step-(0|[1-9][0-9]{0,11})")
# Steps that an error message names.
_NAMED: Final = 6


@dataclass(frozen=True)
class NewStep:
    """The step that a commit makes. after: the newest step that the pusher knows; None: none."""

    number: int
    after: int | None

    def check(self) -> None:
        """Raise InvalidRequest for numbers that no step has, or that do not grow."""
        for name, value in (("step", self.number), ("after", self.after)):
            if value is not None and not 0 <= value <= MAX_STEP:
                raise InvalidRequest(f"{name} is 0 to {MAX_STEP}, not {value}")
        if self.after is not None and self.number <= self.after:
            raise InvalidRequest(
                f"step {self.number} cannot follow step {self.after}: the numbers of a run grow"
            )


@dataclass(frozen=True)
class StepInfo:
    number: int
    commit: str
    created_at: datetime


def step_named(text: str) -> int | None:
    """The number in `step-<number>`; None for other names."""
    match = _NAME.fullmatch(text)
    return None if match is None else int(match[1])


def find_step(session: ReadSession, repository: Repository, number: int) -> Revision | None:
    return session.scalar(
        select(Revision)
        .join(Ref, Ref.revision_id == Revision.id)
        .where(
            Ref.repository_id == repository.id,
            Ref.kind == KIND,
            Ref.name == f"{number:0{_DIGITS}d}",
        )
    )


def newest_step(session: ReadSession, repository: Repository) -> int | None:
    name = session.scalar(
        select(func.max(Ref.name)).where(Ref.repository_id == repository.id, Ref.kind == KIND)
    )
    return None if name is None else int(name)


def list_steps(
    session: ReadSession, repository: Repository, before: int | None, limit: int
) -> list[StepInfo]:
    """The newest steps below a number, the newest first."""
    query = (
        select(Ref.name, Revision.commit, Revision.created_at)
        .join(Revision, Revision.id == Ref.revision_id)
        .where(Ref.repository_id == repository.id, Ref.kind == KIND)
        .order_by(Ref.name.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(Ref.name < f"{before:0{_DIGITS}d}")
    rows = session.execute(query)
    return [StepInfo(int(name), commit, created_at) for name, commit, created_at in rows]


def numbers_of(session: ReadSession, repository: Repository) -> Mapping[int, Sequence[int]]:
    """Id of a revision -> the steps that it is."""
    query = select(Ref.revision_id, Ref.name).where(
        Ref.repository_id == repository.id, Ref.kind == KIND
    )
    found: dict[int, list[int]] = {}
    for row_id, name in session.execute(query):
        found.setdefault(row_id, []).append(int(name))
    return found


def follows_a_step(session: ReadSession, revision: Revision) -> bool:
    """Whether it is a step, and not the first one of its run that is there."""
    first = select(func.min(Ref.name)).where(
        Ref.repository_id == revision.repository_id, Ref.kind == KIND
    )
    found = select(Ref.name).where(
        Ref.revision_id == revision.id, Ref.kind == KIND, Ref.name > first.scalar_subquery()
    )
    return session.scalar(found.limit(1)) is not None


def made_before(
    session: ReadSession,
    repository: Repository,
    name: str,
    step: NewStep,
    operations: Iterable[Operation],
) -> Revision | None:
    """The revision of this step, if an earlier push made it of the same files; else None.

    Conflict if it has other files; RefMoved if another step came since the one that it follows.
    """
    made = find_step(session, repository, step.number)
    if made is not None:
        if not _has_files(session, made, operations):
            raise Conflict(
                f"{name} has a step {step.number} already, with other bytes: a step never changes."
                " Push the next one, or another run"
            )
        return made
    newest = newest_step(session, repository)
    if newest != step.after:
        raise RefMoved(_why_not_next(name, newest, step))
    return None


def add_step(
    session: WriteSession, repository: Repository, revision: Revision, step: NewStep
) -> None:
    """Make the step at a revision. The caller has asked made_before() in this transaction."""
    session.add(
        Ref(
            repository_id=repository.id,
            kind=KIND,
            name=f"{step.number:0{_DIGITS}d}",
            revision_id=revision.id,
        )
    )


def why_no_step(session: ReadSession, repository: Repository, name: str, number: int) -> str:
    """The message for a step that is not there: which are."""
    found = list_steps(session, repository, None, _NAMED + 1)
    if not found:
        return f"{name} has no steps: it is no run"
    numbers = [str(each.number) for each in reversed(found[:_NAMED])]
    earlier = ", and earlier ones" if len(found) > _NAMED else ""
    gone = "" if number > found[0].number else " any more"
    return f"{name} has no step {number}{gone}; its newest steps are {', '.join(numbers)}{earlier}"


def refuse_step_name(session: ReadSession, repository: Repository, name: str, ref: str) -> None:
    """Raise Conflict for a branch or tag with the name of a step of the repository."""
    number = step_named(ref)
    if number is not None and find_step(session, repository, number) is not None:
        raise Conflict(f"{quoted(ref)} is a step of {name}: take another name")


def _has_files(session: ReadSession, made: Revision, operations: Iterable[Operation]) -> bool:
    added = {each.path: each.sha256 for each in operations if isinstance(each, AddFile)}
    there = Tree(session, made.tree_id).at(added)
    return all(path in there and there[path].sha256 == sha256 for path, sha256 in added.items())


def _why_not_next(name: str, newest: int | None, step: NewStep) -> str:
    if newest is None:
        return f"{name} has no steps, and this push follows step {step.after}: is it another run?"
    if step.after is None:
        return (
            f"{name} is at step {newest}, and this push does not say which step it follows: give"
            f" after={newest} (`--after {newest}` to the command), or push to another run"
        )
    return (
        f"{name} is at step {newest}, and this push follows step {step.after}: another trainer has"
        " pushed meanwhile. Two trainers cannot share a run: pull its newest step and go on from"
        " there, or push to another run"
    )

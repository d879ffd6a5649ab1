"""Pushes a step from memory: sends what changed since the step before, then commits its files."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from deltahub.client.api.endpoints import Api
from deltahub.client.api.jobs import wait_for_job
from deltahub.client.errors import (
    Conflict,
    InvalidArgument,
    JobFailed,
    RefMoved,
    RepositoryExists,
    RepositoryNotFound,
)
from deltahub.client.progress import Progress, count_of
from deltahub.client.push.encode import Choice
from deltahub.client.push.packs import PackSender, Refusal, spool_folder
from deltahub.client.push.upload import Uploader
from deltahub.client.steps.hub_calls import list_steps, upload_small
from deltahub.client.steps.layout import INDEX, StepFile, files_of, index_of
from deltahub.client.steps.memory import HeldStep, HeldTensor, hold
from deltahub.client.steps.records import PushedStep
from deltahub.client.steps.stored import is_of_step, read_step
from deltahub.client.steps.tensors import given_tensors
from deltahub.codecs.files.split import FilePlan
from deltahub.codecs.frames.base_choice import (
    MIN_DELTA_BYTES,
    BaseTensor,
    TensorInfo,
    align,
)
from deltahub.codecs.protocol import Effort

# Tensors that an error message names.
_NAMED: Final = 4
_NEVER_SENT: Final = 1.0


@dataclass(frozen=True)
class StepOptions:
    """after: the step that this one follows; None: the one that is held, else none.

    base: the model that the run begins with, to declare to the hub. private: of a new run.
    """

    run: str
    number: int
    after: int | None = None
    base: str | None = None
    message: str | None = None
    private: bool = True


@dataclass(frozen=True)
class _File:
    """A file of the step, as the hub will have it. parts: its tensors."""

    file: StepFile
    plan: FilePlan
    sha256: str
    parts: Sequence[HeldTensor]


class StepPush:
    """One push of a step. A push that ends early leaves the run at the step before."""

    def __init__(self, api: Api, progress: Progress, options: StepOptions) -> None:
        self._api = api
        self._progress = progress
        self._options = options
        self._uploader = Uploader(api)
        self._recipe_bytes = 0
        self._is_new = False
        self._threads = max(1, os.cpu_count() or 1)

    def run(self, tensors: Mapping[str, Any], held: HeldStep | None) -> tuple[PushedStep, HeldStep]:
        """held: the step in memory that the difference is taken from; None sends all of it."""
        with self._api.transport.reporting_waits(self._progress.note):
            given = given_tensors(tensors)
            after = self._check_turn(held)
            # What came by a pull may be the very memory that the trainer has written into.
            is_own = held is not None and not held.is_shared
            now = hold(given, held if is_own else None, self._threads)
            self._check_layout(held, after, now)
            if held is not None and not is_own:
                held = held.right_ones(self._threads)
            with self._progress.stage("hash", None):
                files = self._files(now)
            if self._is_new:  # created late, so that a refused push leaves no empty run
                self._create(sum(each.file.size for each in files))
            self._refuse_other_bytes(files)
            self._send(files, held)
            self._put_recipes(files)
            return self._commit(files, now, held, after)

    def _check_layout(
        self, held: HeldStep | None, after: int | None, now: Mapping[str, HeldTensor]
    ) -> None:
        """InvalidArgument unless the tensors have the names, types and shapes of the step before.

        Another set of tensors is mostly a mistake: a part of a model, or another one. Readers, and
        the layouts of engines, take a step for the same tensors with other values.
        """
        if held is not None:
            before = {name: (each.dtype, each.shape) for name, each in held.tensors.items()}
        elif after is not None:
            found = self._api.get_revision(self._options.run, f"step-{after}")
            refs = read_step(self._api, self._options.run, found).tensors
            before = {ref.name or "": (ref.dtype, ref.shape) for ref in refs}
        else:
            return
        wrong = _differences(before, {name: (each.dtype, each.shape) for name, each in now.items()})
        if wrong:
            more = len(wrong) - _NAMED
            raise InvalidArgument(
                f"the tensors are not those of the step before: {'; '.join(wrong[:_NAMED])}"
                + (f"; and {count_of(more, 'other')}" if more > 0 else "")
                + ". All steps of a run have the same names, shapes and types: push another model"
                " to another run"
            )

    def _check_turn(self, held: HeldStep | None) -> int | None:
        """The step that this one follows. RefMoved, before anything is sent, if others came."""
        options = self._options
        after = options.after
        if after is None and held is not None and held.number < options.number:
            after = held.number
        try:
            newest = next(iter(list_steps(self._api, options.run, 1)), None)
        except RepositoryNotFound:
            if after is not None:
                raise
            self._is_new = True
            return None
        self._api.require_write(options.run)
        at = None if newest is None else newest.number
        if at == after or (at is not None and at >= options.number):
            return after  # in the second case the hub says whether it is the same step
        if at is None:
            raise RefMoved(f"{options.run} has no steps, and this push follows step {after}")
        follows = "does not say which it follows" if after is None else f"follows step {after}"
        raise RefMoved(
            f"{options.run} is at step {at}, and this push {follows}: pull its newest step and go"
            f" on from there, or say after={at} (`--after {at}` to the command) if"
            " its trainer is this one, or push to another run"
        )

    def _refuse_other_bytes(self, files: Sequence["_File"]) -> None:
        """Conflict, before anything is sent, if the step is there with other bytes."""
        options = self._options
        there = self._api.find_revision(options.run, f"step-{options.number}")
        if there is None:
            return
        known = {entry.path: entry.sha256 for entry in there.entries}
        if any(known.get(each.file.path) != each.sha256 for each in files):
            raise Conflict(
                f"{options.run} has a step {options.number} already, with other bytes: a step never"
                " changes. Push the next one, or another run"
            )

    def _create(self, push_bytes: int) -> None:
        """push_bytes: of the step's files; LimitExceeded, and no repository, if too much."""
        options = self._options
        try:
            self._api.create_repository(options.run, private=options.private, push_bytes=push_bytes)
        except RepositoryExists:
            pass  # another trainer has: the commit tells whose step comes first

    def _files(self, now: Mapping[str, HeldTensor]) -> list[_File]:
        files = files_of(now.values())
        with ThreadPoolExecutor(self._threads) as pool:
            hashes = list(pool.map(StepFile.sha256, files))
        plans = [file.plan() for file in files]
        return [
            _File(file, plan, sha256, file.parts(plan))
            for file, plan, sha256 in zip(files, plans, hashes, strict=True)
        ]

    def _send(self, files: Sequence[_File], held: HeldStep | None) -> None:
        """Sends the tensors that the hub lacks, as differences where the step before has them."""
        parts = {part.tensor: part for each in files for part in each.parts}
        sizes = {tensor.hex(): part.size for tensor, part in parts.items()}
        have = self._api.query_tensors(self._options.run, sizes)
        missing = [part for tensor, part in parts.items() if tensor.hex() not in have]
        if not missing:
            return
        choices = [_choose(part, held) for part in missing]
        try:
            self._send_packs(choices, held)
        except (*Refusal, JobFailed) as exc:
            if all(choice.base is None for choice in choices):
                raise
            self._progress.note(f"sending whole tensors: the hub refuses the difference ({exc})")
            self._send_packs([Choice(part, None, _NEVER_SENT) for part in missing], None)

    def _send_packs(self, choices: Sequence[Choice], held: HeldStep | None) -> None:
        run = self._options.run
        total = sum(choice.tensor.size for choice in choices)
        bases = HeldStep(0, "", {}) if held is None else held
        with (
            spool_folder(self._api.transport.url, run) as folder,
            self._progress.stage("send the step", total) as stage,
        ):
            sender = PackSender(self._api, self._uploader, run, folder, Effort.FAST)
            sender.spooled({})  # deletes what a killed push left: its step may have changed since
            sender.send(choices, bases, stage.advance)

    def _put_recipes(self, files: Sequence[_File]) -> None:
        jobs: list[str | None] = []
        sizes = {each.sha256: each.file.size for each in files}
        have = self._api.query_files(self._options.run, sizes)
        for each in files:
            if each.sha256 not in have:
                recipe = each.file.recipe(each.plan, each.sha256).to_bytes()
                self._recipe_bytes += len(recipe)
                jobs.append(self._api.put_recipe(self._options.run, recipe))
        for job_id in jobs:
            if job_id is not None:
                wait_for_job(self._api, job_id, self._progress)

    def _commit(
        self,
        files: Sequence[_File],
        now: Mapping[str, HeldTensor],
        held: HeldStep | None,
        after: int | None,
    ) -> tuple[PushedStep, HeldStep]:
        options = self._options
        operations: list[dict[str, Any]] = [
            {"op": "add", "path": each.file.path, "sha256": each.sha256, "size": each.file.size}
            for each in files
        ]
        index = index_of([each.file for each in files])
        if index is not None:
            sha256 = upload_small(self._api, index)
            operations.append({"op": "add", "path": INDEX, "sha256": sha256, "size": len(index)})
        operations += self._deletions({str(each["path"]) for each in operations})
        result = self._api.commit(
            options.run,
            ref="main",
            message=options.message or f"Step {options.number}",
            parent=None,  # others may commit a card meanwhile
            base=options.base,
            operations=operations,
            step=(options.number, after),
        )
        before = {} if held is None else held.tensors
        pushed = PushedStep(
            run=options.run,
            number=options.number,
            commit=result.commit,
            changed=result.changed,
            tensors=len(now),
            changed_tensors=sum(
                name not in before or before[name].tensor != each.tensor
                for name, each in now.items()
            ),
            size=sum(each.file.size for each in files),
            sent=self._uploader.sent + self._recipe_bytes,
        )
        return pushed, HeldStep(options.number, result.commit, now)

    def _deletions(self, ours: set[str]) -> list[dict[str, Any]]:
        """Weights of other names, which a push of a folder may have left in the run."""
        head = self._api.find_revision(self._options.run, "main")
        paths = [] if head is None else [entry.path for entry in head.entries]
        return [{"op": "delete", "path": path} for path in paths if _is_weights(path, ours)]


def _is_weights(path: str, ours: set[str]) -> bool:
    return path not in ours and (is_of_step(path) or path == INDEX)


def _choose(part: HeldTensor, held: HeldStep | None) -> Choice:
    before = None if held is None or part.name is None else held.tensors.get(part.name)
    if before is None or part.size < MIN_DELTA_BYTES or before.tensor == part.tensor:
        return Choice(part, None, _NEVER_SENT)
    info = TensorInfo(part.name or "", part.dtype, part.shape)
    base = BaseTensor(before.name or "", before.dtype, before.shape, before.tensor)
    return Choice(part, align(info, base), _NEVER_SENT)


_Kind: TypeAlias = tuple[str, tuple[int, ...]]
"""(dtype, shape)"""


def _differences(before: Mapping[str, _Kind], now: Mapping[str, _Kind]) -> list[str]:
    wrong: list[str] = []
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if old is None:
            wrong.append(f"{name} is new")
        elif new is None:
            wrong.append(f"{name} is missing")
        elif old != new:
            wrong.append(f"{name} is {new[0]} {list(new[1])}, and was {old[0]} {list(old[1])}")
    return wrong

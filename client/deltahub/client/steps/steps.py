"""`push_step` and `pull_step`: the part of `Hub` for runs of training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deltahub.client.api.endpoints import Api
from deltahub.client.errors import InvalidArgument
from deltahub.client.names import repository_path
from deltahub.client.progress import Progress, Silent
from deltahub.client.records import PushResult
from deltahub.client.steps.hub_calls import list_steps, newest_step
from deltahub.client.steps.records import ExportedStep, PulledStep, PushedStep, Step

if TYPE_CHECKING:
    from deltahub.client.local.folder import LocalFile
    from deltahub.client.push.send import PushOptions
    from deltahub.client.steps.memory import HeldStep

# The hub's own limit.
MAX_STEP = 10**12 - 1


class Steps:
    """The part of `Hub` that moves the weights of training steps from memory to memory.

    A run is a repository, and a step a revision of it that `step-<number>` names. For each run the
    step that was pushed or pulled last is held in memory, as large as its tensors: the next one
    moves as the difference from it. `release_step` frees it, and the end of the Hub.
    """

    _api: Api
    _push: "Callable[[Sequence[LocalFile], PushOptions, Progress], PushResult]"

    @property
    def _held_steps(self) -> "dict[str, HeldStep]":
        held: dict[str, HeldStep] = self.__dict__.setdefault("_held", {})
        return held

    def push_step(
        self,
        run: str,
        step: int,
        tensors: Mapping[str, Any],
        *,
        after: int | None = None,
        base: str | None = None,
        private: bool = True,
        message: str | None = None,
        progress: Progress | None = None,
    ) -> PushedStep:
        """Push a step of a run from memory: only what changed since the step before moves.

        run: `namespace/name`. The repository is created if it does not exist; private: its
        visibility then. step: its number, larger than those before. tensors: name -> tensor of
        torch, on any device, or array of numpy: as in a state_dict, and all of them. They are
        copied, and may change afterwards.
        after: the step that this one follows; by default the one that this Hub pushed or pulled
        last, or none. base: the model that the run begins with, as in push.
        Returns when the hub has verified every byte. The same step with the same tensors again
        changes nothing.
        Raises RefMoved if another step came first, Conflict if this step is there with other bytes,
        and InvalidArgument for what is no tensor, and for tensors with other names, shapes or types
        than those of the step before.
        """
        from deltahub.client.steps.push import StepOptions, StepPush

        repository_path(run)
        options = StepOptions(
            run=run,
            number=_number(step, "step"),
            after=None if after is None else _number(after, "after"),
            base=base,
            message=message,
            private=private,
        )
        push = StepPush(self._api, progress or Silent(), options)
        pushed, held = push.run(tensors, self._held_steps.get(run))
        self._held_steps[run] = held
        return pushed

    def push_step_files(
        self,
        folder: str | Path,
        run: str,
        step: int,
        *,
        after: int | None = None,
        base: str | None = None,
        private: bool | None = True,
        message: str | None = None,
        progress: Progress | None = None,
    ) -> PushResult:
        """Push a folder's files as a step of a run, for trainers that write checkpoints.

        after: the step that this one follows; None for the first. private: of a new repository;
        None leaves the visibility of one that is there. All else is as in push, and the errors are
        those of push_step.
        """
        from deltahub.client.local.folder import list_folder
        from deltahub.client.push.send import PushOptions

        files = list_folder(Path(folder)).files
        if not any(file.path.endswith(".safetensors") for file in files):
            raise InvalidArgument(f"{folder} has no safetensors file: a step is one at least")
        number = _number(step, "step")
        options = PushOptions(
            name=run,
            base=base,
            message=message or f"Step {number}",
            private=private,
            step=(number, None if after is None else _number(after, "after")),
        )
        return self._push(files, options, progress or Silent())

    def pull_step(
        self,
        run: str,
        step: int | None = None,
        *,
        framework: Literal["torch", "numpy"] = "torch",
        progress: Progress | None = None,
    ) -> PulledStep:
        """A step of a run, in memory, every tensor with the bytes that were pushed.

        step: None for the newest. framework: torch, or numpy, which needs ml_dtypes for bfloat16
        and float8.
        What moves is one difference from the step that this Hub pulled or pushed last, whatever
        lies between the two, or all of the step without one. Each tensor is verified by its BLAKE3.
        The tensors share the memory of the held step: copy what you write into, or the next pull
        finds other bytes there, and lets that tensor come whole.
        Raises RevisionNotFound, which says what steps there are, and VerificationFailed when bytes
        were wrong twice.
        """
        from deltahub.client.steps.pull import StepPull
        from deltahub.client.steps.tensors import as_tensors, check_framework

        repository_path(run)
        number = None if step is None else _number(step, "step")
        check_framework(framework)
        pull = StepPull(self._api, progress or Silent(), run, number)
        pulled, held = pull.run(self._held_steps.get(run))
        self._held_steps[run] = held
        return replace(pulled, tensors=as_tensors(held.tensors, framework))

    def steps(self, run: str, *, limit: int = 100) -> Sequence[Step]:
        """The newest steps of a run that are there, the newest first."""
        return list_steps(self._api, run, limit)

    def newest_step(self, run: str) -> int:
        """The number of the newest step of a run. RevisionNotFound if it has none."""
        return newest_step(self._api, run)

    def export_steps(
        self,
        run: str,
        folder: str | Path,
        *,
        layout: Literal["slime", "skyrl"],
        since: int | None = None,
        until: int | None = None,
        encoding: Literal["xor", "overwrite"] = "xor",
        progress: Progress | None = None,
    ) -> list[ExportedStep]:
        """Write the steps of a run in a layout that engines of other systems read.

        layout: slime, whose versions SGLang pulls, or skyrl. A folder that an earlier export wrote
        gets the steps that came since; what was written is returned.
        since: the step that the engines have as their version 0. Without it the first step is
        written as a whole checkpoint: as version 1 for slime, in `base` for skyrl. until: the last
        step. encoding: of slime alone, too.
        Two steps are in memory at a time. Raises InvalidArgument for a folder with other files, and
        if the last step in the folder is dropped from the run.
        """
        from deltahub.client.local.index import LocalIndex
        from deltahub.client.steps.layouts.export import ExportOptions, StepExport

        repository_path(run)
        options = ExportOptions(run, layout, since, until, encoding)
        index = LocalIndex.default()
        try:
            export = StepExport(self._api, index, progress or Silent(), options)
            return export.run(Path(folder))
        finally:
            index.close()

    def release_step(self, run: str) -> None:
        """Free the memory of the step that is held of a run: the next one moves whole."""
        self._held_steps.pop(run, None)


def _number(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_STEP:
        raise InvalidArgument(f"{name} is a whole number from 0 to {MAX_STEP}, not {value!a:.80}")
    return value

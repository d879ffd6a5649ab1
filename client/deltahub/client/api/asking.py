"""Asking the hub for jobs that compute: a method for each kind of `deltahub.methods.kinds`."""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from deltahub.client.api.endpoints import Api
from deltahub.client.api.jobs import wait_for_job
from deltahub.client.api.parsing import field_of, object_of
from deltahub.client.api.wire import LARGE_ANSWER
from deltahub.client.errors import InvalidArgument
from deltahub.client.progress import Progress, Silent
from deltahub.client.records import Job, LogLine

if TYPE_CHECKING:
    from deltahub.methods.kinds.merge import Method, Rescaler

Priority = Literal["low", "normal", "high"]

_ID: Final = re.compile("[0-9A-Za-z_-]{1,64}")
# Tensors of a comparison in one answer, the hub's most.
_PAGE: Final = 1000


class RunningJob:
    """A job that was asked for, as it was when it was last looked at."""

    def __init__(self, api: Api, job: Job) -> None:
        self._api = api
        self._last_line = 0
        self.job = job

    @property
    def id(self) -> str:
        return self.job.id

    def wait(self, *, progress: Progress | None = None) -> Job:
        """The job once it is done; tells `progress` each line of its log.

        JobFailed with the job's message. Ctrl-C ends the wait, and the job goes on.
        """
        told = progress or Silent()

        def look(_: Job) -> None:
            for line in self.new_lines():
                told.note(line.text)

        self.job = wait_for_job(self._api, self.id, told, look)
        return self.job

    def refresh(self) -> Job:
        """The job as it is now."""
        self.job = self._api.get_job(self.id)
        return self.job

    def new_lines(self) -> list[LogLine]:
        """Lines of the job's log since the last call."""
        lines = self._api.job_log(self.id, self._last_line)
        if lines:
            self._last_line = lines[-1].number
        return lines

    def cancel(self) -> Job:
        """Ask the job to stop; it ends within seconds, and leaves nothing half made."""
        self.job = self._api.cancel_job(self.id)
        return self.job

    def retry(self) -> Job:
        """Run the job again, from its beginning, that failed or was cancelled."""
        self.job = self._api.retry_job(self.id)
        return self.job


class Asking:
    """The part of `Hub` that asks for jobs."""

    _api: Api

    def ask(
        self,
        kind: str,
        arguments: dict[str, Any],
        *,
        priority: Priority = "normal",
        idempotency_key: str | None = None,
    ) -> RunningJob:
        """Ask for a job of any kind. arguments: the fields of the kind's schema; those that are
        missing or None have its defaults. InvalidArgument if they do not fit it.

        idempotency_key: the same key again gives the same job.
        """
        from pydantic import ValidationError

        from deltahub.methods.kinds.kind import fault_text
        from deltahub.methods.kinds.table import KINDS

        if kind not in KINDS:
            raise InvalidArgument(f"{kind!r} is no kind of job: one of {', '.join(KINDS)}")
        given = {name: value for name, value in arguments.items() if value is not None}
        try:
            checked = KINDS[kind].model_validate(given)
        except ValidationError as exc:
            faults = "; ".join(fault_text(each) for each in exc.errors())
            raise InvalidArgument(f"{kind}: {faults}") from exc
        # A request whose answer was lost is sent again, and must not make a second job.
        key = idempotency_key or secrets.token_hex(16)
        job = self._api.ask(kind, checked.model_dump(mode="json"), priority, key)
        return RunningJob(self._api, job)

    def merge(
        self,
        models: Sequence[str],
        *,
        base: str,
        name: str | None = None,
        method: "Method" = "emr",
        tasks: Sequence[str] | None = None,
        rescaler: "Rescaler" = "l1",
        lossless: bool = False,
        scale: float | None = None,
        density: float = 0.2,
        rank: int | None = None,
        budget: float | str | None = None,
        eval: Sequence[Mapping[str, Any]] | None = None,  # noqa: A002
        exclude: Sequence[str] | None = None,
        private: bool | None = None,
        device: str = "auto",
        dry_run: bool = False,
        priority: Priority = "normal",
        idempotency_key: str | None = None,
    ) -> RunningJob:
        """Merge fine-tunes of one base into the new repository `name`.

        By emr `main` is the unified model, and each task a branch. method="compare" makes nothing,
        and measures all methods. `deltahub.methods.kinds.merge.MergeArguments` describes the rest.
        """
        if isinstance(models, str):
            raise InvalidArgument("models is a list of names, not one name")
        arguments = {
            "models": list(models),
            "base": base,
            "name": name,
            "method": method,
            "tasks": tasks,
            "rescaler": rescaler,
            "lossless": lossless,
            "scale": scale,
            "density": density,
            "rank": rank,
            "budget": budget,
            "eval": eval,
            "exclude": exclude,
            "private": private,
            "device": device,
            "dry_run": dry_run,
        }
        return self.ask("merge", arguments, priority=priority, idempotency_key=idempotency_key)

    def compare(
        self,
        first: str,
        second: str,
        *,
        dry_run: bool = False,
        priority: Priority = "normal",
        idempotency_key: str | None = None,
    ) -> RunningJob:
        """Compare two models, `namespace/name[@revision]`, tensor by tensor.

        The job's result names a comparison, which `comparison` and `compared_tensors` read. Weights
        that were compared before are not read again.
        """
        arguments = {"first": first, "second": second, "dry_run": dry_run}
        return self.ask("compare", arguments, priority=priority, idempotency_key=idempotency_key)

    def comparison(self, job: RunningJob | Job | str) -> dict[str, Any]:
        """The totals of a comparison, and those of each layer and module (docs/compare.md).

        job: one of the kind `compare` that is done, or the comparison's id.
        """
        return self._read_comparison(job, "", {})

    def compared_tensors(
        self,
        job: RunningJob | Job | str,
        *,
        search: str = "",
        status: str | None = None,
        sort: str = "relative",
    ) -> Iterator[dict[str, Any]]:
        """The tensors of a comparison, page by page; those that changed most come first.

        search: words of the name. status: same, changed, reshaped, only_first or only_second. sort:
        name, relative, largest, same, cosine, rank or size.
        """
        query = {"search": search, "status": status, "sort": sort, "limit": _PAGE}
        offset = 0
        while True:
            page = self._read_comparison(job, "/tensors", {**query, "offset": offset})
            items = field_of(page, "items", tuple[dict[str, Any], ...])
            yield from items
            offset += len(items)
            if len(items) < _PAGE:
                return

    def compared_tensor(self, job: RunningJob | Job | str, name: str) -> dict[str, Any]:
        """One tensor of a comparison: numbers, histogram and heat map of its difference."""
        return self._read_comparison(job, "/tensor", {"name": name})

    def _read_comparison(
        self, job: RunningJob | Job | str, part: str, query: dict[str, Any]
    ) -> dict[str, Any]:
        found = job.job if isinstance(job, RunningJob) else job
        if isinstance(found, Job):
            result = found.result or {}
            if "comparison_id" not in result:
                raise InvalidArgument(
                    f"the {found.kind} job {found.id} is {found.state} and has no comparison: wait"
                    " for a job of the kind compare"
                )
            found = str(result["comparison_id"])
        if not _ID.fullmatch(found):
            raise InvalidArgument(f"{found!r} is no id of a comparison")
        answer = self._api.transport.call(
            "GET", f"/v1/comparisons/{found}{part}", query=query, limit=LARGE_ANSWER
        )
        return answer.read(object_of)

    def jobs(
        self, *, state: str | None = None, kind: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Your jobs, newest first; all for an administrator. state, kind: only of this one."""
        return self._api.list_jobs(state, kind, limit)

    def running_job(self, job_id: str) -> RunningJob:
        """A job by its id, to wait for it, cancel or retry it."""
        return RunningJob(self._api, self._api.get_job(job_id))

"""The workflows of DBOS: each is one attempt of a job, and has the records of its finished steps.

DBOS is global in a process, and so is what this module starts. Workers share the records of a hub
on PostgreSQL. DBOS gives every run of a workflow a token of its own, and refuses the records of a
run whose workflow another worker has resumed.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from dbos import DBOS, DBOSConfig, SetWorkflowID, WorkflowStatus
from sqlalchemy import URL

from deltahub.registry.errors import StorageFull, Unavailable
from deltahub.registry.registry import Registry
from deltahub.workers.step_records import file as engine_file
from deltahub.workers.step_records.file import engine_errors
from deltahub.workers.step_records.serializer import JsonSerializer

# Increase it when workflows get other arguments: unfinished jobs then start from the beginning.
# The steps of each kind of job have a version of their own (attempts.Kind).
WORKFLOW_VERSION: Final = "6"
UNFINISHED: Final = ["PENDING", "ENQUEUED", "DELAYED"]
FINISHED: Final = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]
# Most workflows that are listed at once.
_PAGE: Final = 1000
# How often DBOS looks for workflows that this worker resumes, in seconds.
_QUEUE_INTERVAL_S: Final = 0.5

# job_id, number of the attempt, lane, version of the kind's steps
AttemptFunction = Callable[[str, int, str, int], None]


class Workflows:
    """The workflows of this process, and those of dead workers. One for each process."""

    def __init__(self, registry: Registry, worker_id: str, run: AttemptFunction) -> None:
        """worker_id: random, and of this process alone, so that DBOS resumes nothing by itself."""
        self._worker_id = worker_id
        self._run = run
        self._path = (
            registry.data_dir / engine_file.DATABASE_NAME if registry.db.is_sqlite else None
        )
        self._url = registry.db.url if self._path is None else _sqlite_url(self._path)
        self._is_polling = True

    def start(self) -> None:
        """Start DBOS. A file that it cannot use is set aside."""
        if self._path is None:
            self._launch()
            return
        engine_file.prepare(self._path)
        try:
            self._launch()
        except (StorageFull, Unavailable):
            raise
        except Exception as error:
            # The check of the file finds no missing table, for example.
            DBOS.destroy(destroy_registry=True)
            engine_file.set_aside(self._path, error)
            engine_file.prepare(self._path)
            self._launch()

    def set_aside(self, error: Exception) -> None:
        """Rename the file, which is damaged. In PostgreSQL there is none."""
        if self._path is not None:
            engine_file.set_aside(self._path, error)

    def begin(self, workflow_id: str, arguments: tuple[str, int, str, int]) -> None:
        """Run a new workflow in a thread of this process."""
        with engine_errors(), SetWorkflowID(workflow_id):
            DBOS.start_workflow(self._workflow, *arguments)

    def resume(self, workflow_id: str) -> None:
        """Go on with an unfinished workflow in a thread of this process, within a second or two.

        What its former process still runs of it records nothing any more.
        """
        if not self._is_polling:
            raise RuntimeError("the worker has to start again, to resume a workflow")
        with engine_errors():
            DBOS.resume_workflow(workflow_id, queue_name=self._worker_id)

    def status(self, workflow_id: str) -> WorkflowStatus | None:
        """None if there is none, or code of another version began it, whose records do not fit."""
        with engine_errors():
            found = DBOS.get_workflow_status(workflow_id)
            if found is not None and found.app_version != WORKFLOW_VERSION:
                DBOS.delete_workflows([workflow_id])
                return None
        return found

    def listed(self, states: list[str]) -> list[WorkflowStatus]:
        """The workflows in these states, of all workers, some thousand at most."""
        with engine_errors():
            return DBOS.list_workflows(
                status=states, limit=_PAGE, load_input=False, load_output=False
            )

    def delete(self, workflow_ids: Iterable[str]) -> None:
        ids = list(workflow_ids)
        if ids:
            with engine_errors():
                DBOS.delete_workflows(ids)

    def worker_ids(self) -> list[str]:
        """The ids of workers that have started and were not forgotten."""
        with engine_errors():
            return [queue.name for queue in DBOS.list_queues()]

    def forget_worker(self, worker_id: str) -> None:
        with engine_errors():
            DBOS.delete_queue(worker_id)

    def end_polling(self) -> None:
        """Stop the threads of DBOS that look for workflows to resume, for good.

        They cause most of the CPU time of an idle hub. With SQLite, only workflows of an earlier
        process are ever resumed, and that is over soon.
        """
        if not self._is_polling:
            return
        for event in self._dbos.background_thread_stop_events:
            event.set()
        self._dbos._background_jobs_stop_event.set()  # as DBOS's destroy() does
        self._is_polling = False

    def _launch(self) -> None:
        config: DBOSConfig = {
            "name": "deltahub",
            "system_database_url": self._url,
            "application_version": WORKFLOW_VERSION,
            "executor_id": self._worker_id,
            "serializer": JsonSerializer(),
            "enable_otlp": False,
            "log_level": "WARNING",
            # Notifications and schedules are not used: their threads poll as rarely as possible.
            "notification_listener_polling_interval_sec": 30.0,
            "scheduler_polling_interval_sec": 3600.0,
            "use_listen_notify": False,
        }
        self._dbos = DBOS(config=config)

        def job(job_id: str, number: int, lane: str, steps_version: int) -> None:
            self._run(job_id, number, lane, steps_version)

        self._workflow = DBOS.workflow(name="job")(job)
        DBOS.listen_queues([self._worker_id])
        with engine_errors():
            DBOS.launch()
            DBOS.register_queue(self._worker_id, polling_interval_sec=_QUEUE_INTERVAL_S)


def is_unfinished(status: WorkflowStatus) -> bool:
    return status.status in UNFINISHED


def _sqlite_url(path: Path) -> str:
    """A URL, whose path may have characters that mean something in URLs."""
    return URL.create("sqlite", database=str(path)).render_as_string()

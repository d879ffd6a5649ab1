"""Settings of the worker process, with units and defaults, read from DELTAHUB_WORKER_*."""

import re
from typing import Final

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from deltahub.registry.jobs import queue
from deltahub.registry.settings import EnvironmentSettings

_ADDRESS: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+):(?P<port>[0-9]{1,5})", re.ASCII
)
_LAST_PORT: Final = 65535


class WorkerSettings(EnvironmentSettings):
    """The job engine's settings. Arguments override environment variables."""

    model_config = SettingsConfigDict(env_prefix="DELTAHUB_WORKER_", frozen=True)

    concurrency: int = Field(
        default=1, ge=1, le=64, description="Jobs that run at once in this process."
    )
    compute_concurrency: int = Field(
        default=1, ge=1, le=64, description="Jobs that compute at once, beside the others."
    )
    compute_threads: int = Field(
        default=0, ge=0, description="Threads of a job that computes; 0: one for each core."
    )
    compute_memory_bytes: int = Field(
        default=8 << 30,
        ge=512 << 20,
        description="Memory that a job that computes may take; more ends it with an error.",
    )
    queues: str = Field(
        default="io,cpu,gpu",
        description="Which jobs this process runs, separated by commas: io, cpu, gpu.",
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda:[0-9]{1,2})$",
        description="Where models run in jobs that do not insist on the CPU.",
    )
    poll_interval_s: float = Field(
        default=0.15, gt=0, description="How often the jobs table is looked at, in seconds."
    )
    stop_grace_s: float = Field(
        default=5.0, ge=0, description="How long a stopping worker waits for the step in hand."
    )
    max_attempts: int = Field(
        default=100, ge=1, description="How often one job may be resumed after the worker died."
    )
    turn_s: float = Field(
        default=2.0,
        ge=0,
        description="How long a job runs before it makes room between steps for a waiting job.",
    )
    retry_pause_max_s: float = Field(
        default=300.0,
        gt=0,
        description="Longest pause before a job is repeated that met no room or no database.",
    )
    patience_s: float = Field(
        default=259200.0, ge=0, description="How long such a job is repeated before it fails."
    )

    metrics_address: str | None = Field(
        default=None,
        description="HOST:PORT at which GET /metrics and GET /healthz are answered; by default"
        " nowhere.",
    )

    @field_validator("metrics_address")
    @classmethod
    def _check_metrics_address(cls, value: str | None) -> str | None:
        if not value:
            return None
        found = _ADDRESS.fullmatch(value)
        if found is None or int(found["port"]) > _LAST_PORT:
            raise ValueError("write HOST:PORT, such as 127.0.0.1:8378 or [::1]:8378")
        return value

    @field_validator("queues")
    @classmethod
    def _check_queues(cls, value: str) -> str:
        for name in _names(value):
            if name not in queue.QUEUES:
                raise ValueError(f"{name!r} is no queue: one of {', '.join(queue.QUEUES)}")
        return value

    @property
    def queue_names(self) -> list[str]:
        return _names(self.queues)

    @property
    def metrics_host_and_port(self) -> tuple[str, int] | None:
        found = _ADDRESS.fullmatch(self.metrics_address or "")
        return None if found is None else (found["host"].strip("[]"), int(found["port"]))

    @property
    def n_turns(self) -> dict[str, int]:
        """Lane -> jobs of it that run at once in this process."""
        n_of = {"io": self.concurrency}
        return {
            queue.QUEUES[name]: n_of.get(name, self.compute_concurrency)
            for name in self.queue_names
        }


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]

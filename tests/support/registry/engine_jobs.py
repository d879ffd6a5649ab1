"""Enqueues jobs of engine_process.py, starts workers that run them, and looks at the results."""

import time
from pathlib import Path
from typing import Any

from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.jobs import queue
from deltahub.registry.registry import Registry
from support.forked import Fork

PROCESS = Path(__file__).parent / "engine_process.py"


def launch(registry: Registry) -> Fork:
    url = [] if registry.db.is_sqlite else [registry.db.url]
    return Fork("-W", "error", PROCESS, registry.data_dir, *url)


def enqueue(registry: Registry, kind: str, *, user_id: int | None = None, **payload: Any) -> str:
    with registry.db.write() as session:
        return queue.enqueue(session, kind, payload, user_id=user_id)


def look(registry: Registry, job_id: str) -> Job:
    with registry.db.read() as session:
        return session.get_one(Job, job_id)


def wait_for(registry: Registry, job_id: str, *states: str) -> Job:
    deadline = time.monotonic() + 30
    while (job := look(registry, job_id)).state not in states:
        assert time.monotonic() < deadline, f"still {job.state}"
        time.sleep(0.02)
    return job


def steps(registry: Registry, job_id: str) -> list[str]:
    path = registry.data_dir / f"steps-{job_id}"
    return path.read_text().split() if path.exists() else []

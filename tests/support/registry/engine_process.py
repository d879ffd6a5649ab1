"""A worker process with jobs made for tests: `python engine_process.py DATA_DIR`.

Jobs write a line to the file `steps-<job>` in the data folder for each step that really runs.
"""

import errno
import os
import signal
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Engine as SqlEngine
from sqlalchemy import event

from deltahub.registry.data_folder import WORKER, WORKER_LOCK
from deltahub.registry.errors import HashMismatch, StorageFull, Unavailable
from deltahub.registry.leases.locks import together
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import StoreFull, StoreUnavailable
from deltahub.workers.attempts import Kind
from deltahub.workers.context import JobContext
from deltahub.workers.engine import Engine
from deltahub.workers.settings import WorkerSettings
from deltahub.workers.step_records.file import DATABASE_NAME


def note(context: JobContext, line: str) -> int:
    with (context.registry.data_dir / f"steps-{context.job_id}").open("a") as log:
        log.write(line + "\n")
    return len(line)


def count(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """payload["n"] steps of payload["step_s"] seconds; dies once in step payload["die_in"]."""
    total = 0
    for i in range(payload["n"]):

        def one(i: int = i) -> int:
            marker = context.registry.data_dir / f"died-{context.job_id}"
            if i == payload.get("die_in") and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(payload.get("step_s", 0))
            return note(context, f"{i}")

        total += context.step(f"count {i}", one)
        context.report("counting", i + 1, payload["n"])
    return {"total": total}


def refuse(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    def refused() -> None:
        note(context, "refused")
        raise HashMismatch("the file has another SHA-256")

    context.step("refuse", refused)
    return {}


LACKS: dict[str, Exception] = {
    "store_full": StoreFull("no room for pack 7"),
    "storage_full": StorageFull("the disk has no room"),
    "store_unavailable": StoreUnavailable("the disk does not answer"),
    "unavailable": Unavailable("the database stayed locked"),
    "no_space": OSError(errno.ENOSPC, "No space left on device"),
    "io_error": OSError(errno.EIO, "Input/output error"),
    "memory": MemoryError("no memory"),
}


def lack(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Fails with LACKS[payload["error"]] until the data folder has a file of the job's name."""

    def second() -> int:
        if not (context.registry.data_dir / f"enough-{context.job_id}").exists():
            raise LACKS[payload["error"]]
        return note(context, "second")

    got = context.step("first", lambda: note(context, "first"))
    got += second() if payload.get("between_steps") else context.step("second", second)
    return {"got": got}


def flicker(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    left = [payload["n"]]

    def sometimes() -> int:
        note(context, "tried")
        if left[0]:
            left[0] -= 1
            raise StoreUnavailable("not now")
        return 1

    return {"got": context.step("sometimes", sometimes)}


def broken(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    return {"got": context.step("divide", lambda: 1 // payload["by"])}


def poison(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    context.step("die", die)
    return {}


def hoard(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """payload["n"] steps whose results take 100 kB each in the engine's file."""
    total = 0
    for i in range(payload["n"]):
        total += len(context.step(f"hoard {i}", lambda: "x" * 100_000))
    return {"total": total}


def limit_engine_file() -> None:
    """Let the engine's file grow to 1.6 MB. SQLite then fails as on a full disk."""

    @event.listens_for(SqlEngine, "connect")
    def limit(connection: sqlite3.Connection, _record: object) -> None:
        if Path(connection.execute("PRAGMA database_list").fetchone()[2]).name == DATABASE_NAME:
            connection.execute("PRAGMA max_page_count = 400")


KINDS = {
    "poison": Kind(poison),
    "count": Kind(count),
    "tally": Kind(count),
    "refuse": Kind(refuse),
    "flicker": Kind(flicker),
    "broken": Kind(broken),
    "lack": Kind(lack),
    "hoard": Kind(hoard),
}


def main(data_dir: Path) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if (data_dir / "small-engine-file").exists():
        limit_engine_file()
    if (data_dir / "new-steps-of-count").exists():
        KINDS["count"] = Kind(count, steps_version=2)
    url = sys.argv[2] if len(sys.argv) > 2 else None
    registry = Registry.open(Settings(data_dir=data_dir, database_url=url))
    with together(registry, WORKER_LOCK, WORKER, {}, lambda: os._exit(1)) as held:
        settings = WorkerSettings(poll_interval_s=0.05, max_attempts=2, turn_s=0.1)
        engine = Engine(registry, settings, KINDS, held.id, held.mark_looked)
        engine.start()
        engine.run(stop)
        assert "torch" not in sys.modules
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

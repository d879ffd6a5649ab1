"""`deltahub worker`: runs the background jobs of a data folder."""

import logging
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from deltahub.registry.leases.locks import Held
    from deltahub.registry.registry import Registry
    from deltahub.workers.metrics import MetricsPort
    from deltahub.workers.settings import WorkerSettings


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the hub's data; by default DELTAHUB_DATA_DIR or ./deltahub-data.",
)
@click.option(
    "--queues", help="Run only these jobs: io (what was pushed), cpu, gpu; separated by commas."
)
@click.option("--device", help="Where models run: cpu, cuda:0 and so on; by default auto.")
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Answer GET /metrics, for Prometheus, and GET /healthz there; by default nowhere.",
)
@click.option("--with-parent", is_flag=True, hidden=True, help="End when standard input ends.")
def worker(
    data_dir: Path | None,
    queues: str | None,
    device: str | None,
    metrics: str | None,
    with_parent: bool,
) -> None:
    """Run the hub's background jobs until stopped.

    `deltahub serve` starts one by itself. With SQLite a hub takes one worker: a second exits with
    status 3, as does one beside a `deltahub gc` that needs the hub to itself. With PostgreSQL any
    number of workers on any machine share the jobs of a hub.
    """
    # Before numpy is loaded: OpenBLAS threads make the search for low rank slower, not faster.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from deltahub.registry.parent import die_with_parent

    if with_parent:
        die_with_parent()
    # Before the heavy imports, so that an early stop signal is not lost.
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    os.umask(0o077)  # for the files that DBOS and SQLite make
    asked = {"queues": queues, "device": device, "metrics_address": metrics}
    _work(data_dir, {name: value for name, value in asked.items() if value is not None}, stop)


def _work(data_dir: Path | None, asked: dict[str, Any], stop: threading.Event) -> None:
    from deltahub.registry.data_folder import (
        DATABASE_MOVE,
        EXIT_BUSY,
        GC,
        RESTORE,
        WORKER,
        WORKER_LOCK,
        DataFolderBusy,
    )
    from deltahub.registry.errors import RegistryError
    from deltahub.registry.leases.locks import together
    from deltahub.registry.logs import LogFormatter, log_to_stderr
    from deltahub.registry.registry import Registry
    from deltahub.registry.settings import Settings, shown_settings
    from deltahub.registry.storage.base import StoreError
    from deltahub.workers.settings import WorkerSettings

    worker_settings = WorkerSettings(**asked)
    chosen: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    settings = Settings(**chosen)
    log_to_stderr(LogFormatter("worker", settings.log_format))
    metrics = _metrics_port(worker_settings)
    cannot_open = f"cannot open the data folder {settings.data_dir.resolve()}"
    try:
        registry = Registry.open(settings)
    except (RegistryError, StoreError, OSError) as error:
        raise click.ClickException(f"{cannot_open}: {error}") from error
    try:
        about = {
            "queues": worker_settings.queue_names,
            "device": worker_settings.device,
            "settings": [asdict(each) for each in shown_settings(worker_settings)],
        }
        with together(registry, WORKER_LOCK, WORKER, about, _end) as held:
            status = _run(registry, worker_settings, metrics, held, stop)
        # Unfinished jobs block in threads that cannot be joined.
        logging.shutdown()
        os._exit(status)
    except DataFolderBusy as error:
        way_out = (
            f"`{error.command}` has {error.place} to itself ({error.holder}); "
            "start a worker when that has ended"
            if error.command in (GC, RESTORE, DATABASE_MOVE)
            else f"{error.place} already has a worker ({error.holder}); "
            "stop it, or `deltahub serve` that started it, before starting another"
        )
        click.echo(f"deltahub worker: {way_out}", err=True)
        registry.close()
        sys.exit(EXIT_BUSY)
    except StoreError as error:
        raise click.ClickException(f"{cannot_open}: {error}") from error


def _metrics_port(settings: "WorkerSettings") -> "MetricsPort | None":
    """Bind the address for metrics, before anything is opened or made."""
    if settings.metrics_host_and_port is None:
        return None
    from deltahub.registry.monitoring.access import MetricsSettings
    from deltahub.workers.metrics import CannotListen, MetricsPort

    try:
        return MetricsPort(*settings.metrics_host_and_port, MetricsSettings().metrics_token)
    except CannotListen as error:
        raise click.ClickException(str(error)) from error


def _run(
    registry: "Registry",
    settings: "WorkerSettings",
    metrics: "MetricsPort | None",
    held: "Held",
    stop: threading.Event,
) -> int:
    """Run jobs until `stop` is set; the exit status of the process, which must end then."""
    from deltahub.registry.errors import RegistryError
    from deltahub.registry.jobs.worker_measures import MeasuresFile
    from deltahub.registry.leases.signs_of_life import mark_gone
    from deltahub.workers.engine import Engine
    from deltahub.workers.jobs.kinds import KINDS

    log = logging.getLogger(__name__)
    measures = MeasuresFile(registry)
    try:
        if metrics is None:
            measures.start()
        else:
            # Prometheus must not get the same counts from the server of this data folder, too.
            measures.forget()
            metrics.serve(registry.measures)
        engine = Engine(registry, settings, KINDS, held.id, held.mark_looked)
        engine.start()
        log.info("worker is ready")
        engine.run(stop)
        if metrics is None:
            measures.write()
    except RegistryError as error:
        log.error("the worker gives up; whoever started it may start it again: %s", error)
        return 1
    except Exception:
        log.exception("the worker gives up; whoever started it may start it again")
        return 1
    mark_gone(registry)
    return 0


def _end() -> NoReturn:
    """Other workers took this one for dead, and have its jobs."""
    logging.getLogger(__name__).error("the worker ends, because it stood still for too long")
    logging.shutdown()
    os._exit(1)

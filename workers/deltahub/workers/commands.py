"""`deltahub worker`: runs the background jobs of a data folder."""

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from deltahub.registry.registry import Registry


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the hub's data; by default DELTAHUB_DATA_DIR or ./deltahub-data.",
)
@click.option("--with-parent", is_flag=True, hidden=True, help="End when standard input ends.")
def worker(data_dir: Path | None, with_parent: bool) -> None:
    """Run the hub's background jobs until stopped.

    `deltahub serve` starts one by itself. A folder takes one worker: a second exits with status 3,
    as does one beside a `deltahub gc` that needs the folder to itself.
    """
    from deltahub.workers.parent import die_with_parent

    if with_parent:
        die_with_parent()
    # Before the heavy imports, so that an early stop signal is not lost.
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    os.umask(0o077)  # for the files that DBOS and SQLite make
    # Before numpy is loaded: OpenBLAS threads make the search for low rank slower, not faster.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _work(data_dir, stop)


def _work(data_dir: Path | None, stop: threading.Event) -> None:
    from deltahub.registry.data_folder import (
        EXIT_BUSY,
        GC,
        RESTORE,
        WORKER,
        WORKER_LOCK,
        DataFolderBusy,
        DataFolderLock,
    )
    from deltahub.registry.errors import RegistryError
    from deltahub.registry.logs import LogFormatter, log_to_stderr
    from deltahub.registry.registry import Registry
    from deltahub.registry.settings import Settings
    from deltahub.registry.storage.base import StoreError

    chosen: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    settings = Settings(**chosen)
    log_to_stderr(LogFormatter("worker", settings.log_format))
    cannot_open = f"cannot open the data folder {settings.data_dir.resolve()}"
    try:
        registry = Registry.open(settings)
    except (RegistryError, StoreError, OSError) as error:
        raise click.ClickException(f"{cannot_open}: {error}") from error
    try:
        with DataFolderLock(registry.data_dir, WORKER_LOCK, WORKER):
            _run(registry, stop)
    except DataFolderBusy as error:
        way_out = (
            f"`{error.command}` has the data folder {error.folder} to itself ({error.holder}); "
            "start a worker when that has ended"
            if error.command in (GC, RESTORE)
            else f"{error.folder} already has a worker ({error.holder}); "
            "stop it, or `deltahub serve` that started it, before starting another"
        )
        click.echo(f"deltahub worker: {way_out}", err=True)
        registry.close()
        sys.exit(EXIT_BUSY)
    except StoreError as error:
        raise click.ClickException(f"{cannot_open}: {error}") from error


def _run(registry: "Registry", stop: threading.Event) -> NoReturn:
    """Run jobs until `stop` is set, then end the process.

    It never returns, because unfinished jobs block in threads that cannot be joined. The next
    worker resumes them. The system releases the lock of the data folder.
    """
    from deltahub.registry.errors import RegistryError
    from deltahub.registry.jobs.worker_measures import MeasuresFile
    from deltahub.workers.engine import Engine
    from deltahub.workers.jobs.kinds import KINDS
    from deltahub.workers.settings import WorkerSettings

    log = logging.getLogger(__name__)
    status = 1
    settings = WorkerSettings()
    try:
        engine = Engine(registry, settings, KINDS)
        engine.start()
        measures = MeasuresFile(registry)
        measures.start()
        log.info("worker is ready")
        engine.run(stop)
        measures.write()
        status = 0
    except RegistryError as error:
        log.error("the worker gives up; whoever started it may start it again: %s", error)
    except Exception:
        log.exception("the worker gives up; whoever started it may start it again")
    logging.shutdown()
    os._exit(status)

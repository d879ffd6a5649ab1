"""`deltahub serve`: the HTTP server and a worker process."""

import ctypes
import gc
import os
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from deltahub.registry.registry import Registry
    from deltahub.registry.settings import Settings
    from deltahub.server.process.serve import HubServer
    from deltahub.server.process.supervisor import WorkerSupervisor
    from deltahub.server.settings import ServerSettings

_M_ARENA_MAX = -8


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the hub's data; by default DELTAHUB_DATA_DIR or ./deltahub-data.",
)
@click.option("--host", help="Address to bind; by default 127.0.0.1, this machine alone.")
@click.option("--port", type=click.IntRange(0, 65535), help="By default 8377; 0 takes a free one.")
@click.option("--no-worker", is_flag=True, help="Jobs wait for a `deltahub worker`.")
@click.option("--access-log", is_flag=True, help="Log every request.")
def serve(
    data_dir: Path | None, host: str | None, port: int | None, no_worker: bool, access_log: bool
) -> None:
    """Run the hub until stopped by Ctrl-C or SIGTERM.

    The first start creates the data folder and prints an administrator's token, once. Background
    jobs run in a worker process of its own, started here. Exit status: 0 stopped; 1 could not
    start; 2 a setting is wrong; 3 another hub, or `deltahub gc`, has the data folder.
    """
    # Printed before the imports, because they take a second or more. A log of JSON objects has no
    # lines for people.
    is_for_people = os.environ.get("DELTAHUB_LOG_FORMAT") != "json"
    if is_for_people:
        click.echo("DeltaHub is starting", err=True)
    from deltahub.registry.logs import LogFormatter, log_to_stderr
    from deltahub.registry.settings import Settings
    from deltahub.server.connections.redaction import redacted
    from deltahub.server.connections.request_ids import current_id

    given = {"data_dir": data_dir, "host": host, "port": port}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    settings = Settings(**chosen)
    log_to_stderr(LogFormatter("server", settings.log_format, redacted, current_id))
    _serve(settings, with_worker=not no_worker, access_log=access_log)
    if is_for_people:
        click.echo("DeltaHub has stopped", err=True)


class FolderTaken(click.ClickException):
    """Another hub or `deltahub gc` uses the data folder."""

    exit_code = 3  # EXIT_BUSY of the registry; not imported, because `--help` must stay fast


class WorkerRefused(click.ClickException):
    """The worker cannot run with its settings; its own error message says which one is wrong."""

    exit_code = 2
    code = "wrong_setting"


def _serve(settings: "Settings", *, with_worker: bool, access_log: bool) -> None:
    from deltahub.registry.data_folder import (
        GC,
        RESTORE,
        SERVE,
        SERVE_LOCK,
        DataFolderBusy,
        DataFolderLock,
        check_free,
    )
    from deltahub.registry.errors import RegistryError
    from deltahub.registry.registry import Registry
    from deltahub.registry.storage.base import StoreError

    # These imports and settings come before anything is created: a missing extra or a wrong setting
    # fails here.
    from deltahub.server.process.open_files import raise_limit
    from deltahub.server.process.serve import HubServer
    from deltahub.server.settings import ServerSettings

    _limit_heaps()
    raise_limit()
    server_settings = ServerSettings()
    with ExitStack() as stack:
        try:
            # Checked first: another hub on this folder most likely holds the port as well, and
            # opening the registry would migrate the database while that hub uses it.
            check_free(settings.data_dir, SERVE_LOCK)
            listener = _bind(settings.host, settings.port)
            registry = stack.enter_context(Registry.open(settings))
            stack.enter_context(DataFolderLock(registry.data_dir, SERVE_LOCK, SERVE))
            _make_administrator(registry)
        except DataFolderBusy as error:
            if error.command in (GC, RESTORE):
                raise FolderTaken(
                    f"`{error.command}` has the data folder {error.folder} to itself "
                    f"({error.holder}): start the hub when it has ended"
                ) from error
            raise FolderTaken(
                f"another hub runs on the data folder {error.folder} ({error.holder}): "
                "stop that one, or give this one a folder of its own with --data-dir"
            ) from error
        except (RegistryError, StoreError, OSError) as error:
            raise click.ClickException(_cannot_open(settings, error)) from error
        worker = None
        if with_worker and server_settings.has_embedded_worker:
            worker = _worker(registry, server_settings)
        try:
            server = HubServer(
                registry,
                server_settings,
                access_log=access_log,
                on_signal=None if worker is None else worker.ask_to_stop,
                has_worker=worker is not None,
            )
        except StoreError as error:
            raise click.ClickException(_cannot_open(settings, error)) from error
        _run(server, listener, worker)
        if worker is not None and worker.is_refused:
            raise WorkerRefused("the worker cannot run with these settings: see above")


def _cannot_open(settings: "Settings", error: Exception) -> str:
    return f"cannot open the data folder {settings.data_dir.resolve()}: {error}"


def _make_administrator(registry: "Registry") -> None:
    """Create an administrator if the hub has none, and print the token once."""
    from deltahub.registry.access import bootstrap, tokens

    token = bootstrap.bootstrap_admin(registry)
    if token is not None:
        name = tokens.authenticate(registry, token).name
        click.echo(f"User `{name}` administers this hub, with the token {token}")
        click.echo("It is not shown again. Keep it: `deltahub login` asks for it.")


def _worker(registry: "Registry", settings: "ServerSettings") -> "WorkerSupervisor":
    from deltahub.server.process.supervisor import WorkerSupervisor

    return WorkerSupervisor(registry.data_dir, settings.worker_restart_max_s, settings.stop_grace_s)


def _run(server: "HubServer", listener: socket.socket, worker: "WorkerSupervisor | None") -> None:
    """Run server and worker until stopped; both get a stop signal at the same time."""
    # uvicorn installs its own handlers while it runs. Ours handle signals before that, and the
    # signal that uvicorn raises again after it has stopped, while we clean up.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    if worker is not None:
        worker.start(on_refusal=server.stop)
    try:
        # Objects made until now live as long as the process: later collections skip them.
        gc.collect()
        gc.freeze()
        server.run_on(listener, lambda url: click.echo(f"DeltaHub is listening on {url}"))
    finally:
        if worker is not None:
            worker.stop()


def _limit_heaps() -> None:
    """Limit glibc to two heaps: with one heap a thread, each keeps its freed buffers to itself."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries lack it
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, 2)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as exc:
        raise click.ClickException(
            f"cannot listen on {host}:{port}: {exc.strerror}; choose another address with --host, "
            "another port with --port (0 takes a free one)"
        ) from exc
    return listener

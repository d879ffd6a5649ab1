"""`deltahub serve`: the HTTP server and a worker process."""

import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from deltahub.registry.registry import Registry
    from deltahub.registry.settings import Settings
    from deltahub.server.process.many import ServerProcesses
    from deltahub.server.process.serve import HubServer
    from deltahub.server.process.supervisor import Supervisor
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
@click.option(
    "--s3-port", type=click.IntRange(0, 65535),
    help="Port at which S3 clients read models; 0 takes a free one; by default none.",
)  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 64), help="Server processes; by default 1.")
@click.option("--no-worker", is_flag=True, help="Jobs wait for a `deltahub worker`.")
@click.option("--access-log", is_flag=True, help="Log every request.")
@click.option("--listener", type=int, hidden=True, help="Take connections from this descriptor.")
@click.option("--s3-listener", type=int, hidden=True, help="Those of S3 from this one.")
@click.option("--with-parent", is_flag=True, hidden=True, help="End when standard input ends.")
def serve(
    data_dir: Path | None,
    host: str | None,
    port: int | None,
    s3_port: int | None,
    workers: int | None,
    no_worker: bool,
    access_log: bool,
    listener: int | None,
    s3_listener: int | None,
    with_parent: bool,
) -> None:
    """Run the hub until stopped by Ctrl-C or SIGTERM.

    The first start creates the data folder and prints an administrator's token, once. Background
    jobs run in a worker process of its own, started here. Exit status: 0 stopped; 1 could not
    start; 2 a setting is wrong; 3 another hub, or `deltahub gc`, has the data folder.
    """
    # Printed before the imports, because they take a second or more. A log of JSON objects has no
    # lines for people.
    is_for_people = listener is None and os.environ.get("DELTAHUB_LOG_FORMAT") != "json"
    if is_for_people:
        click.echo("DeltaHub is starting", err=True)
    if with_parent:
        from deltahub.registry.parent import die_with_parent

        die_with_parent()
    from deltahub.registry.logs import LogFormatter, log_to_stderr
    from deltahub.registry.settings import Settings
    from deltahub.server.connections.redaction import redacted
    from deltahub.server.connections.request_ids import current_id

    given = {"data_dir": data_dir, "host": host, "port": port}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    settings = Settings(**chosen)
    log_to_stderr(LogFormatter("server", settings.log_format, redacted, current_id))
    if listener is not None:
        of_s3 = None if s3_listener is None else socket.socket(fileno=s3_listener)
        _serve_beside(settings, socket.socket(fileno=listener), of_s3, access_log=access_log)
    else:
        _serve(settings, _How(not no_worker, access_log, workers, s3_port))
    if is_for_people:
        click.echo("DeltaHub has stopped", err=True)


class FolderTaken(click.ClickException):
    """Another hub or `deltahub gc` uses the data folder."""

    exit_code = 3  # EXIT_BUSY of the registry; not imported, because `--help` must stay fast


class OtherKey(click.ClickException):
    """The servers of one hub sign with different keys, so that each refuses the others' links."""

    exit_code = 2
    code = "wrong_setting"


class WorkerRefused(click.ClickException):
    """The worker cannot run with its settings; its own error message says which one is wrong."""

    exit_code = 2
    code = "wrong_setting"


@dataclass(frozen=True)
class _How:
    """n_servers: processes that answer requests. s3_port. None: as the settings say."""

    with_worker: bool
    access_log: bool
    n_servers: int | None
    s3_port: int | None


def _serve_beside(
    settings: "Settings",
    listener: socket.socket,
    s3_listener: socket.socket | None,
    *,
    access_log: bool,
) -> None:
    """Run one of several servers. The process that started it has the locks and the worker."""
    from deltahub.registry.errors import RegistryError
    from deltahub.registry.registry import Registry
    from deltahub.registry.storage.base import StoreError
    from deltahub.server.process.open_files import raise_limit
    from deltahub.server.process.serve import HubServer
    from deltahub.server.settings import ServerSettings

    _limit_heaps()
    raise_limit()
    own = ServerSettings()
    try:
        with Registry.open(settings) as registry:
            server = HubServer(
                registry, own, access_log=access_log, has_worker=own.has_embedded_worker
            )
            _run(server, (listener, s3_listener), None, lambda url: None)
    except (RegistryError, StoreError, OSError) as error:
        raise click.ClickException(_cannot_open(settings, error)) from error


def _serve(settings: "Settings", how: _How) -> None:
    from deltahub.registry.data_folder import (
        DATABASE_MOVE,
        GC,
        RESTORE,
        SERVE,
        SERVE_LOCK,
        DataFolderBusy,
        check_free,
    )
    from deltahub.registry.errors import RegistryError
    from deltahub.registry.leases.locks import others, together
    from deltahub.registry.registry import Registry
    from deltahub.registry.storage.base import StoreError

    # These imports and settings come before anything is created: a missing extra or a wrong setting
    # fails here.
    from deltahub.server.process.many import ServerProcesses
    from deltahub.server.process.open_files import raise_limit
    from deltahub.server.process.serve import HubServer, url_of
    from deltahub.server.settings import ServerSettings
    from deltahub.server.signing import Signer

    _limit_heaps()
    raise_limit()
    server_settings = ServerSettings()
    with ExitStack() as stack:
        try:
            # Checked first: another hub on this folder most likely holds the port as well, and
            # opening the registry would migrate the database while that hub uses it.
            if settings.database_url is None:
                check_free(settings.data_dir, SERVE_LOCK)
            listener = _bind(settings.host, settings.port, "--port")
            s3_port = server_settings.s3_port if how.s3_port is None else how.s3_port
            s3_listener = None if s3_port is None else _bind(settings.host, s3_port, "--s3-port")
            registry = stack.enter_context(Registry.open(settings))
            key = Signer.of(registry.data_dir, server_settings.signing_key).fingerprint
            stop = partial(os.kill, os.getpid(), signal.SIGTERM)
            about = {"signing_key": key}
            held = stack.enter_context(together(registry, SERVE_LOCK, SERVE, about, stop))
            if any(other.get("signing_key") != key for other in others(registry, SERVE_LOCK, held)):
                raise OtherKey(
                    "another server of this hub signs links with another key: give all of them the"
                    " same DELTAHUB_SERVER_SIGNING_KEY, a random secret of 32 characters or more"
                )
            _make_administrator(registry)
        except DataFolderBusy as error:
            if error.command in (GC, RESTORE, DATABASE_MOVE):
                raise FolderTaken(
                    f"`{error.command}` has {error.place} to itself "
                    f"({error.holder}): start the hub when it has ended"
                ) from error
            raise FolderTaken(
                f"another hub runs on {error.place} ({error.holder}): "
                "stop that one, or give this one a folder of its own with --data-dir"
            ) from error
        except (RegistryError, StoreError, OSError) as error:
            raise click.ClickException(_cannot_open(settings, error)) from error
        worker = None
        if how.with_worker and server_settings.has_embedded_worker:
            worker = _worker(registry, server_settings)
        n_servers = how.n_servers or server_settings.workers
        server: HubServer | ServerProcesses
        if n_servers > 1:
            server = ServerProcesses(
                registry.data_dir,
                listener,
                n_servers,
                restart_max_s=server_settings.worker_restart_max_s,
                grace_s=server_settings.stop_grace_s,
                access_log=how.access_log,
                s3_listener=s3_listener,
            )
        else:
            try:
                server = HubServer(
                    registry,
                    server_settings,
                    access_log=how.access_log,
                    on_signal=None if worker is None else worker.ask_to_stop,
                    has_worker=worker is not None,
                )
            except StoreError as error:
                raise click.ClickException(_cannot_open(settings, error)) from error
        if s3_listener is not None:
            click.echo(f"S3 clients read models at {url_of(s3_listener)}")
        listeners = (listener, s3_listener)
        _run(server, listeners, worker, lambda url: click.echo(f"DeltaHub is listening on {url}"))
        if worker is not None and worker.is_refused:
            raise WorkerRefused("the worker cannot run with these settings: see above")
        if isinstance(server, ServerProcesses) and server.is_refused:
            raise WorkerRefused("the servers cannot run with these settings: see above")


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


def _worker(registry: "Registry", settings: "ServerSettings") -> "Supervisor":
    from deltahub.server.process.supervisor import worker_supervisor

    return worker_supervisor(
        registry.data_dir, settings.worker_restart_max_s, settings.stop_grace_s
    )


def _run(
    server: "HubServer | ServerProcesses",
    listeners: tuple[socket.socket, socket.socket | None],
    worker: "Supervisor | None",
    on_ready: Callable[[str], None],
) -> None:
    """Run server and worker until stopped; both get a stop signal at the same time.

    listeners: the hub's, and that of S3 clients.
    """
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
        server.run_on(listeners[0], on_ready, listeners[1])
    finally:
        if worker is not None:
            worker.stop()


def _limit_heaps() -> None:
    """Limit glibc to two heaps: with one heap a thread, each keeps its freed buffers to itself."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries lack it
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, 2)


def _bind(host: str, port: int, option: str) -> socket.socket:
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
            f"another port with {option} (0 takes a free one)"
        ) from exc
    return listener

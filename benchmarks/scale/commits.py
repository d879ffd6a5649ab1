"""Commits of many clients to many repositories at once, on PostgreSQL.

`python -m benchmarks.scale.commits --database-url postgresql+psycopg://USER@HOST/EMPTY`

Two servers of one hub take commits of a small file from 8 clients, each to a repository of its own:
first as it is, then with all writers waiting for one lock, as they would if every transaction ran
alone. Prints for both the commits a second, and how many sessions waited for a lock on the mean.
"""

import argparse
import base64
import http.client
import json
import multiprocessing
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import create_engine, text

from benchmarks.hub import EmbeddedHub, stop_in_order
from benchmarks.results_file import RESULTS, print_columns, write_results

CLIENTS = 8
_KEY = "a secret of this measurement, of at least 32 characters"
_ALONE = (
    "from deltahub.registry.db.session import Database;"
    "Database.write_beside = lambda self, *keys: self.write();"
)


@dataclass(frozen=True)
class Row:
    """writers: beside or alone. waiting: sessions that wait for a lock, on the mean."""

    writers: str
    commits: int
    seconds: float
    commits_a_second: float
    waiting: float


def ask(connection: http.client.HTTPConnection, token: str, path: str, body: bytes) -> Any:
    kind = "application/x-ndjson" if b"\n" in body else "application/json"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    data = answer.read()
    assert answer.status in (200, 201), (answer.status, data)
    return json.loads(data)


def commit_many(url: str, token: str, name: str, n: int) -> None:
    """n commits, one after the other, each of one small file."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    for i in range(n):
        content = base64.b64encode(f"{name} {i} {time.time_ns()}".encode()).decode()
        lines = [
            {"key": "header", "value": {"summary": f"number {i}"}},
            {
                "key": "file",
                "value": {"path": "notes.txt", "content": content, "encoding": "base64"},
            },
        ]
        body = "\n".join(map(json.dumps, lines)).encode()
        ask(connection, token, f"/api/models/{name}/commit/main", body)


def measure(database: str, folder: Path, token: str, writers: str, n: int) -> tuple[Row, str]:
    code = _ALONE if writers == "alone" else ""
    environment = {
        "DELTAHUB_DATABASE_URL": database,
        "DELTAHUB_SERVER_SIGNING_KEY": _KEY,
        "DELTAHUB_SERVER_HAS_EMBEDDED_WORKER": "0",
    }
    with ExitStack() as stack:
        hubs = []
        for _ in range(2):
            hub = EmbeddedHub(folder, folder.parent / "log", token=token, code=code, **environment)
            hubs.append(stack.enter_context(hub))
            token = hub.token
        names = [f"admin/{writers}{number}" for number in range(CLIENTS)]
        first = http.client.HTTPConnection(urlsplit(hubs[0].url).netloc)
        for name in names:
            body = {"name": name.partition("/")[2], "organization": "admin"}
            ask(first, token, "/api/repos/create", json.dumps(body).encode())
            commit_many(hubs[0].url, token, name, 1)
        waiting: list[int] = []
        ended = threading.Event()
        watcher = threading.Thread(target=watch, args=(database, waiting, ended))
        watcher.start()
        began = time.monotonic()
        clients = [
            multiprocessing.Process(target=commit_many, args=(hubs[i % 2].url, token, name, n))
            for i, name in enumerate(names)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
            assert client.exitcode == 0
        seconds = time.monotonic() - began
        ended.set()
        watcher.join()
    n_all = n * CLIENTS
    return Row(writers, n_all, seconds, n_all / seconds, mean(waiting or [0])), token


def watch(database: str, waiting: list[int], ended: threading.Event) -> None:
    engine = create_engine(database, isolation_level="AUTOCOMMIT")
    query = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    with engine.connect() as connection:
        while not ended.wait(0.02):
            waiting.append(connection.scalar(query) or 0)
    engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--n", type=int, default=100, help="commits of each client")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    given = parser.parse_args()
    stop_in_order()
    token, rows = "", []
    with tempfile.TemporaryDirectory() as place:
        for writers in ("beside", "alone"):
            row, token = measure(given.database_url, Path(place, "hub"), token, writers, given.n)
            rows.append(row)
    print_columns(
        ["writers", "commits", "seconds", "commits/s", "waiting"],
        [
            [each.writers, str(each.commits), f"{each.seconds:.1f}",
             f"{each.commits_a_second:.1f}", f"{each.waiting:.2f}"]
            for each in rows
        ],
    )  # fmt: skip
    print(f"beside / alone: {rows[0].commits_a_second / rows[1].commits_a_second:.2f}")
    write_results(
        "commits-postgresql",
        [vars(row) for row in rows],
        ("sqlalchemy", "psycopg"),
        (),
        given.results,
    )


if __name__ == "__main__":
    main()

"""Trees of many files and long histories: `python -m benchmarks.scale.trees`.

Makes a hub with a repository of each number of files, and one for each number of commits, each of
which changes one of ten files. Each call is made again and again; its row has the server's CPU time
a call.
"""

import argparse
import base64
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sqlalchemy import delete, func, select

from benchmarks.hub import EmbeddedHub, stop_in_order
from benchmarks.results_file import print_columns, write_results
from benchmarks.scale.run import PACKAGES, cpu_s, say
from deltahub.registry import Caller, Registry, Settings
from deltahub.registry.access.users import list_users
from deltahub.registry.catalog.commit import AddFile, Operation, commit
from deltahub.registry.catalog.repositories import create_repository
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Revision
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.uploads.small_files import SmallFiles

FILES: Final = "100,1000,10000,100000,1000000"
COMMITS: Final = "1,100,1000,10000"
# Different contents of the files, and files in a folder.
_CONTENTS: Final = 1000
_IN_FOLDER: Final = 500
_CALL_S: Final = 2.0
_MIN_CALLS: Final = 5
# (what is asked for, path)
CALLS: Final = (
    ("model_info", "/api/models/{name}"),
    ("tree", "/api/models/{name}/tree/main"),
    ("tree of a folder", "/api/models/{name}/tree/main/data/0000"),
    ("tree with last commits", "/api/models/{name}/tree/main?expand=true"),
    ("HEAD of a file", "/{name}/resolve/main/README.md"),
)


def fill(folder: Path, files: list[int], commits: list[int], changed: int) -> None:
    """Make the repositories; `changed` commits of one file each follow in those of many files."""
    with Registry.open(Settings(data_dir=folder)) as reg:
        (admin,) = (
            Caller(user.id, user.name, user.is_admin, "admin")
            for user in list_users(reg)
            if user.is_admin
        )
        for n in files:
            began = time.monotonic()
            _make_wide(reg, admin, f"admin/files-{n}", n)
            for number in range(changed):
                _commit(reg, admin, f"admin/files-{n}", {"README.md": b"# %d" % number})
            say(f"{n} files were committed in {time.monotonic() - began:.0f} s")
        for n in commits:
            began = time.monotonic()
            name = f"admin/commits-{n}"
            create_repository(reg, admin, name)
            for number in range(n):
                few = range(10) if number == 0 else [number % 10]
                content = b"%d" % (number % _CONTENTS)
                _commit(reg, admin, name, {f"data/{k}.txt": content for k in few})
            say(f"{n} commits took {time.monotonic() - began:.0f} s")
        _forget_old_jobs(reg)


def _forget_old_jobs(reg: Registry) -> None:
    """Leave the ingest of the last commit of each repository, as after months with a worker."""
    last = select(func.max(Revision.id)).group_by(Revision.repository_id)
    of_last = Job.payload["revision_id"].as_integer().in_(last)
    with reg.db.write() as session:
        session.execute(delete(Job).where(Job.state == "queued", Job.kind == "ingest", ~of_last))


def _make_wide(reg: Registry, admin: Caller, name: str, n: int) -> None:
    create_repository(reg, admin, name)
    uploads = SmallFiles(reg, admin)
    hashes = [(uploads.add(b"%d" % k), len(b"%d" % k)) for k in range(_CONTENTS)]
    uploads.flush()
    paths = (f"data/{k // _IN_FOLDER:04}/{k:07}.txt" for k in range(n - 1))
    for part in batches(paths, reg.settings.max_operations):
        adds: list[Operation] = [
            AddFile(path, *hashes[int(path[-11:-4]) % _CONTENTS]) for path in part
        ]
        commit(reg, admin, name, "main", adds)


def _commit(reg: Registry, admin: Caller, name: str, files: dict[str, bytes]) -> None:
    uploads = SmallFiles(reg, admin)
    adds: list[Operation] = [
        AddFile(path, uploads.add(data), len(data)) for path, data in files.items()
    ]
    uploads.flush()
    commit(reg, admin, name, "main", adds)


def wait_until_settled(folder: Path) -> None:
    """Wait until the hub's worker has stored all files."""
    waiting = select(func.count()).where(Job.state.in_(("queued", "running")))
    with Registry.open(Settings(data_dir=folder)) as reg:
        while True:
            with reg.db.read() as session:
                if not session.scalar(waiting):
                    return
            time.sleep(1)


def measure(hub: EmbeddedHub, name: str) -> dict[str, float]:
    """Milliseconds of the server's CPU for each call."""
    address = urlsplit(hub.url)
    assert address.hostname is not None
    connection = HTTPConnection(address.hostname, address.port, timeout=600)
    token = {"Authorization": f"Bearer {hub.token}"}
    numbers = count(int(time.time()))

    def get(path: str) -> None:
        method = "HEAD" if "/resolve/" in path else "GET"
        connection.request(method, path.format(name=name), headers=token)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status in (200, 404), body

    def commit_readme() -> None:
        content = base64.b64encode(b"# %d" % next(numbers)).decode()
        lines = [
            {"key": "header", "value": {"summary": "readme", "description": ""}},
            {
                "key": "file",
                "value": {"content": content, "path": "README.md", "encoding": "base64"},
            },
        ]
        body = "\n".join(map(json.dumps, lines))
        kind = {"Content-Type": "application/x-ndjson"}
        connection.request("POST", f"/api/models/{name}/commit/main", body, token | kind)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text

    found = {"README commit": _cpu_ms(hub, commit_readme)}
    for what, path in CALLS:
        found[what] = _cpu_ms(hub, lambda path=path: get(path))
    connection.close()
    return found


def _cpu_ms(hub: EmbeddedHub, call: Callable[[], None]) -> float:
    call()
    n, before, began = 0, cpu_s(hub.pid), time.perf_counter()
    while n < _MIN_CALLS or time.perf_counter() < began + _CALL_S:
        call()
        n += 1
    return 1e3 * (cpu_s(hub.pid) - before) / n


def rows_of(hub: EmbeddedHub, kind: str, numbers: list[int]) -> Iterator[dict[str, Any]]:
    found = {n: measure(hub, f"admin/{kind}-{n}") for n in numbers}
    for what in next(iter(found.values()), {}):
        cells = {f"cpu_ms_{n}": round(found[n][what], 1) for n in numbers}
        yield {"what_grows": kind, "call": what, **cells}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", default=FILES, help="files of each repository")
    parser.add_argument("--commits", default=COMMITS, help="commits of each repository")
    parser.add_argument("--changed", type=int, default=0, help="more commits where files are many")
    parser.add_argument("--scratch", type=Path, help="a folder to keep the hub in")
    given = parser.parse_args()
    stop_in_order()
    files, commits = (
        [int(n) for n in text.split(",") if n] for text in (given.files, given.commits)
    )
    with tempfile.TemporaryDirectory() as temporary:
        scratch = given.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        token = scratch / "token"
        if not token.exists():
            with EmbeddedHub(scratch / "hub", scratch / "hub.log") as hub:
                made = hub.token
            fill(scratch / "hub", files, commits, given.changed)
            token.write_text(made)
        with EmbeddedHub(scratch / "hub", scratch / "hub.log", token=token.read_text()) as hub:
            wait_until_settled(scratch / "hub")
            size = os.path.getsize(scratch / "hub" / "deltahub.sqlite3")
            say(f"the database has {size / 1e6:.0f} MB")
            tables = [
                list(rows_of(hub, *each)) for each in (("files", files), ("commits", commits))
            ]
        for rows in tables:
            titles = list(rows[0]) if rows else []
            print_columns(titles, [[str(row[title]) for title in titles] for row in rows])
        everything = [row for rows in tables for row in rows]
        names = list(dict.fromkeys(name for row in everything for name in row))
        filled = [{name: row.get(name, "") for name in names} for row in everything]
        say(f"written to {write_results('scale-trees', filled, PACKAGES)}")


if __name__ == "__main__":
    main()

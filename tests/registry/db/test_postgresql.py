"""The registry on PostgreSQL, which types and names some things otherwise than SQLite does."""

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import func, make_url, select, text
from starlette.testclient import TestClient

from deltahub.registry import Registry
from deltahub.registry.catalog import search
from deltahub.registry.catalog.search import list_repositories
from deltahub.registry.db.models import Domain
from deltahub.registry.db.session import Database
from deltahub.registry.errors import InvalidRequest, Unavailable
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.reencode.recompress import apply_recompress, plan_recompress
from deltahub.server.app import create_app
from support.models import tiny_models as tiny
from support.registry.collecting import collect
from support.registry.ingested import push_ingested, read_file, run_replans, stored_tensors
from support.registry.opened import caller, opened_registry, push

PATH = "model.safetensors"


def _tool(name: str) -> str | None:
    places = [*sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True), os.environ["PATH"]]
    return shutil.which(name, path=os.pathsep.join(places))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of an empty database on a server of our own, on loopback."""
    pytest.importorskip("psycopg")
    initdb, postgres = _tool("initdb"), _tool("postgres")
    if initdb is None or postgres is None:
        pytest.skip("there is no PostgreSQL server on this machine")
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


def _wait(port: int) -> None:
    import psycopg

    for _ in range(300):
        try:
            psycopg.connect(f"host=127.0.0.1 port={port} user=hub dbname=postgres").close()
            return
        except psycopg.OperationalError:
            time.sleep(0.1)
    raise AssertionError("the server does not answer")


@pytest.fixture
def reg(url: str, tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path, database_url=url) as registry:
        yield registry


def test_a_hub_does_its_work(reg: Registry) -> None:
    ann = caller(reg, "ann")
    tuned = tiny.to_file(tiny.finetune(1e-5))
    first = push_ingested(reg, ann, "ann/tune", {PATH: tuned}, base="ann/base")
    base = push_ingested(reg, ann, "ann/base", {PATH: tiny.to_file(tiny.base())})
    assert run_replans(reg) > 0
    assert any(stored.bases for stored in stored_tensors(reg, first).values())
    assert read_file(reg, first, PATH) == tuned
    assert read_file(reg, base, PATH) == tiny.to_file(tiny.base())

    found = [item.name for item in list_repositories(reg, ann, search="TUN").items]
    assert found == ["ann/tune"]
    with reg.db.read() as session:
        assert [item.name for item in search(session, ann, words="bAs nn")] == ["ann/base"]

    client = TestClient(create_app(reg))
    shown = client.get("/api/models/ann/tune").json()
    assert shown["usedStorage"] == len(tuned)
    assert client.get("/api/models", params={"search": "a\0b"}).status_code in (200, 400, 422)
    push(reg, ann, "ann/tree", dict.fromkeys(("B", "a-", "a/b", "a0", "é", "~"), b"1"))
    tree, seen = "/api/models/ann/tree/tree/main?limit=2&recursive=true", []
    while tree:
        page = client.get(tree)
        seen += [item["path"] for item in page.json()]
        tree = page.links.get("next", {}).get("url", "")
    assert seen == ["B", "a-", "a", "a/b", "a0", "~", "é"]
    refused = client.get("/api/models/ann/tree/tree/main?cursor=%00")
    assert refused.status_code == 422
    asked = {"paths": ["\0", "a"]}
    shown = client.post("/api/models/ann/tree/paths-info/main", data=asked).json()
    assert [item["path"] for item in shown] == ["a"]

    plan = plan_recompress(reg)
    json.dumps(plan.as_dict())
    apply_recompress(reg, plan)
    json.dumps(plan_gc(reg, lease_s=0, grace_s=0).as_dict())
    collect(reg)
    assert list(fsck(reg, read_data=True)) == []
    assert read_file(reg, first, PATH) == tuned


def test_what_the_database_cannot_hold_is_refused(reg: Registry) -> None:
    ann = caller(reg, "bob")
    with pytest.raises(InvalidRequest, match="NUL"):
        list_repositories(reg, ann, search="a\0b")


def test_who_writes_waits_for_who_writes(reg: Registry, url: str) -> None:
    # What one has read before it writes holds until it commits, also beside another process.
    other = Database(url)
    n_at_once, seen = 4, []

    def create(database: Database) -> None:
        with database.write() as session:
            seen.append(session.scalar(select(func.count()).where(Domain.key == "once")))
            if not seen[-1]:
                time.sleep(0.2)
                session.add(Domain(key="once"))

    with ThreadPoolExecutor(n_at_once) as pool:
        list(pool.map(create, [reg.db, other] * (n_at_once // 2)))
    other.close()
    assert sorted(seen) == [0, 1, 1, 1]


def test_a_server_that_is_away_is_unavailable(url: str) -> None:
    port = make_url(url).port
    assert port is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        away = Database(url.replace(str(port), str(free.getsockname()[1])))
    with pytest.raises(Unavailable, match="cannot be reached"), away.write():
        raise AssertionError("nothing was connected to")
    with pytest.raises(Unavailable, match="cannot be reached"), away.read() as session:
        session.scalar(select(1))
    away.close()


def test_a_session_that_the_server_ends_is_unavailable(reg: Registry) -> None:
    end = text("SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(Unavailable, match="cannot be reached"), reg.db.write() as session:
        session.execute(end)
    with reg.db.write() as session:  # of a new connection
        assert session.scalar(select(1)) == 1


def test_a_lock_that_is_not_had_in_time_is_unavailable(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltahub.registry.db.session.BUSY_TIMEOUT_S", 0.2)
    one, other = Database(url), Database(url)
    with one.write():
        with pytest.raises(Unavailable, match="stayed locked"):
            ThreadPoolExecutor(1).submit(_write_nothing, other).result()
    _write_nothing(other)
    one.close()
    other.close()


def _write_nothing(database: Database) -> None:
    with database.write() as session:
        session.scalar(select(1))

"""Downloads of models are counted, shown, and an order of lists, in both APIs."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from starlette.testclient import TestClient

from deltahub.client import Hub as Client
from deltahub.registry import Registry
from deltahub.registry.access.repositories import find_repository
from deltahub.registry.catalog.lists.download_counts import COUNT_ONCE_S, DownloadCounts
from deltahub.registry.catalog.repositories import delete_repository, get_repository
from deltahub.registry.db.models import Repository
from deltahub.server.app import create_app
from support.registry.opened import caller, opened_registry, push
from support.service.hub import running_hub

CONFIG = {"config.json": b"{}", "model.safetensors": b"weights", "notes.txt": b"1"}
NAMES = ("ann/a", "ann/b", "ann/c")


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        ann = caller(registry, "ann")
        for name in NAMES:
            push(registry, ann, name, CONFIG)
        yield registry


# As if the disk were full in the middle of the transaction.
REFUSE = """
CREATE TRIGGER refuse BEFORE UPDATE OF downloads ON repositories WHEN new.name = 'c'
BEGIN SELECT RAISE(ABORT, 'full'); END
"""


def row(reg: Registry, name: str) -> Repository:
    with reg.db.read() as session:
        found = find_repository(session, name)
    assert found is not None
    return found


def downloads(reg: Registry, name: str) -> int:
    return get_repository(reg, None, name).downloads


def test_a_download_is_a_request_of_a_file_that_says_what_the_model_is(reg: Registry) -> None:
    app = create_app(reg)
    client = TestClient(app, base_url="http://localhost")
    counts = app.state.hub.downloads
    for path in ("notes.txt", "model.safetensors", "README.md", "deep/config.json"):
        client.get(f"/ann/a/resolve/main/{path}")
    counts.write(reg)
    assert downloads(reg, "ann/a") == 0
    # A client asks for the head of a file, and then for the file.
    assert client.head("/ann/a/resolve/main/config.json").status_code == 200
    assert client.get("/ann/a/resolve/main/config.json").status_code == 200
    assert client.get("/v1/repositories/ann/a/files/config.json").status_code == 200
    assert client.get("/ann/b/resolve/none/config.json").status_code == 404
    # Not written yet, and once only.
    assert downloads(reg, "ann/a") == 0
    for _ in range(2):
        counts.write(reg)
        assert (downloads(reg, "ann/a"), downloads(reg, "ann/b")) == (1, 0)


def test_downloads_are_shown_and_an_order(reg: Registry) -> None:
    app = create_app(reg)
    client = TestClient(app, base_url="http://localhost")
    counts = app.state.hub.downloads
    for name, n in (("ann/a", 2), ("ann/c", 1)):
        found = row(reg, name)
        for number in range(n):
            counts.note(found, "config.json", number)
    counts.write(reg)
    shown = client.get("/api/models/ann/a").json()
    assert (shown["downloads"], "downloadsAllTime" in shown) == (2, False)
    expanded = client.get("/api/models/ann/a?expand=downloadsAllTime&expand=downloads").json()
    assert (expanded["downloads"], expanded["downloadsAllTime"]) == (2, 2)
    for limit in (1, 100):
        names, url = [], f"/api/models?sort=downloads&limit={limit}"
        while url:
            answer = client.get(url)
            names += [(one["id"], one["downloads"]) for one in answer.json()]
            url = answer.links.get("next", {}).get("url", "")
        assert names == [("ann/a", 2), ("ann/c", 1), ("ann/b", 0)]
    items = client.get("/v1/repositories?sort=downloads").json()["items"]
    assert [(one["name"], one["downloads"]) for one in items] == names
    assert client.get("/v1/repositories?sort=likes").status_code == 422


def test_one_client_is_counted_once_in_a_while(reg: Registry) -> None:
    now = [0.0]
    counts = DownloadCounts(clock=lambda: now[0])
    found = row(reg, "ann/a")
    for client, at in ((1, 0.0), (1, COUNT_ONCE_S - 1), ("127.0.0.1", 2.0), (1, COUNT_ONCE_S)):
        now[0] = at
        counts.note(found, "config.json", client)
    for path in ("m.Q4.gguf", "adapter_config.json", "model_index.json"):
        now[0] += COUNT_ONCE_S
        counts.note(found, path, 1)
    counts.write(reg)
    assert downloads(reg, "ann/a") == 6


def test_what_cannot_be_written_stays_counted(reg: Registry) -> None:
    counts = DownloadCounts()
    for name in NAMES:
        counts.note(row(reg, name), "config.json", "127.0.0.1")
    with reg.db.write() as session:
        session.execute(text(REFUSE))
    with pytest.raises(IntegrityError):
        counts.write(reg)
    with reg.db.write() as session:
        session.execute(text("DROP TRIGGER refuse"))
    delete_repository(reg, caller(reg, "ann"), "ann/b")
    counts.write(reg)
    assert [downloads(reg, name) for name in ("ann/a", "ann/c")] == [1, 1]


def test_a_hub_writes_what_it_counted_by_itself_and_when_it_stops(tmp_path: Path) -> None:
    with running_hub(tmp_path / "data") as hub:
        for name in ("admin/soon", "admin/last"):
            hub.create(name)
            hub.commit(name, CONFIG)
        assert hub.call("GET", "/admin/soon/resolve/main/config.json").status == 200
        deadline = time.monotonic() + 30
        while downloads(hub.registry, "admin/soon") == 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with Client(hub.url, hub.admin_token) as client:
            listed = client.list(sort="downloads")
        assert (listed[0].name, listed[0].downloads) == ("admin/soon", 1)
        assert hub.call("GET", "/admin/last/resolve/main/config.json").status == 200
    with Registry.open(hub.registry.settings) as reg:
        assert downloads(reg, "admin/last") == 1

"""Pages of other sites call the hub from a real browser, where its settings name their origin."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser

from deltahub.server.settings import ServerSettings
from support.service.hf_door import create_model, header, send_commit, small
from support.service.hub import RunningHub, running_hub
from support.web.browsing import visitor

CALL = """async ([hub, token]) => {
  const api = (path, options = {}) => fetch(hub + path, {
    ...options, headers: {Authorization: `Bearer ${token}`, ...options.headers},
  });
  const part = await api("/admin/m/resolve/main/b", {headers: {Range: "bytes=1-2"}});
  const line = (key, value) => JSON.stringify({key, value}) + "\\n";
  const body = line("header", {summary: "from a page"})
    + line("file", {path: "c", content: btoa("new"), encoding: "base64"});
  const kind = {"Content-Type": "application/x-ndjson"};
  const made = await api("/api/models/admin/m/commit/main", {method: "POST", headers: kind, body});
  const none = await api("/api/models/admin/none");
  return [
    part.status, await part.text(), part.headers.get("X-Repo-Commit"),
    part.headers.get("Content-Range"), made.status,
    none.status, none.headers.get("X-Error-Code"),
    await (await api("/admin/m/resolve/main/c")).text(),
  ];
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server of one page, which is another origin by each name of this machine."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text("<!doctype html><title>A page</title>")
    (folder / "favicon.ico").touch()
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def open_hub(site: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    settings = ServerSettings(stop_grace_s=2, cors_origins=f"http://127.0.0.1:{site}")
    folder: Path = tmp_path_factory.mktemp("open") / "data"
    with running_hub(folder, server_settings=settings) as hub:
        create_model(hub, "admin/m")
        send_commit(hub, "admin/m", header(), small("b", b"bytes"))
        yield hub


def test_a_page_of_a_named_origin_reads_and_writes(
    browser: Browser, site: int, open_hub: RunningHub
) -> None:
    with visitor(browser, f"http://127.0.0.1:{site}", is_checked=False) as found:
        page = found.open("/")
        commit = open_hub.call("GET", "/api/models/admin/m").json()["sha"]
        answers = page.evaluate(CALL, [open_hub.url, open_hub.admin_token])
    assert answers == [206, "yt", commit, "bytes 1-2/5", 200, 404, "RepoNotFound", "new"]


def test_a_page_of_another_origin_gets_nothing(
    browser: Browser, site: int, open_hub: RunningHub
) -> None:
    with visitor(browser, f"http://localhost:{site}", is_checked=False) as found:
        page = found.open("/")
        refused = page.evaluate(
            f"({CALL})({[open_hub.url, open_hub.admin_token]!r}).catch(error => String(error))"
        )
    assert refused == "TypeError: Failed to fetch"

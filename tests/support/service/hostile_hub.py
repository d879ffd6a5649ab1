"""A hub that answers whatever a test says: a small real HTTP server on loopback.

with hostile_hub() as hub:
    hub.serve_revision("evil/m", {".git/config": b"[core]"})
    hub.answers["GET /v1/whoami"] = reply(b"not JSON")
"""

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40


@dataclass(frozen=True)
class Reply:
    """One answer. length: the Content-Length to announce, by default the true one."""

    body: bytes = b"{}"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None


def reply(body: Any = b"{}", status: int = 200, **headers: str) -> Reply:
    """An answer with these bytes, or with anything else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply(data, status, {key.replace("_", "-"): value for key, value in headers.items()})


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by `METHOD /path` without the query; 404 if the test says nothing of it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "HostileHub"
    body: bytes  # of the request

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        missing = reply({"error": {"code": "not_found", "message": "no such route"}}, 404)
        answer = self.server.answers.get(f"{self.command} {path}", missing)
        if callable(answer):
            answer = answer(self)
        if answer is None:  # the test wrote to the wire itself
            self.close_connection = True
            return
        self.send_response(answer.status)
        for key, value in answer.headers.items():
            self.send_header(key, value)
        length = len(answer.body) if answer.length is None else answer.length
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        self.close_connection = length != len(answer.body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_PATCH = _answer

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client went away
            super().handle()

    def log_message(self, *args: Any) -> None:
        pass


Answer = Reply | Callable[[Handler], Reply | None]


class HostileHub(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.seen: list[tuple[str, str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def serve_revision(self, name: str, files: Mapping[str, bytes], **more: Any) -> dict[str, Any]:
        """Answer as a hub with these files does; returns the revision, to be changed by a test."""
        entries = [entry(path, data) for path, data in files.items()]
        revision = {
            "commit": COMMIT, "parent": None, "message": "", "author": "evil",
            "created_at": "2026-01-01T00:00:00Z", "base": {"declared": None, "commit": None},
            "job_id": None, "entries": entries, **more,
        }  # fmt: skip
        root = f"/v1/repositories/{name}"
        self.answers[f"GET {root}/revision"] = lambda _: reply(revision)
        for path, data in files.items():
            self.answers[f"GET {root}/files/{path}"] = reply(data)
        return revision


def entry(path: str, data: bytes, **more: Any) -> dict[str, Any]:
    """An entry of a regular file, as a hub describes it."""
    git_id = sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return {
        "path": path, "size": len(data), "sha256": sha256(data).hexdigest(),
        "git_blob_id": git_id, "etag": git_id, "mode": "regular", "state": "landed", **more,
    }  # fmt: skip


@contextlib.contextmanager
def hostile_hub() -> Iterator[HostileHub]:
    """Run one inside the block."""
    with HostileHub() as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()

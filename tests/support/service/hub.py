"""Runs hubs on loopback for tests, in a thread of this process or as `deltahub serve`.

with running_hub(tmp_path / "data") as hub:             # fast; no worker unless asked for
    answer = hub.call("GET", "/v1/whoami", token=hub.admin_token)
with served_hub(tmp_path / "data") as hub:              # the real command and its worker
    hub.process.kill()
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from deltahub.registry.access import bootstrap, tokens, users
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.storage.disk import Disk
from deltahub.server.process.serve import HubServer, url_of
from deltahub.server.process.supervisor import Supervisor, worker_supervisor
from deltahub.server.settings import ServerSettings
from support.registry.opened import begin

START_TIMEOUT_S = 60
RAW_HOST = "hub"
JOB_TIMEOUT_S = 60


@dataclass(frozen=True)
class Answer:
    """A hub's answer to one request."""

    status: int
    headers: HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The error's code; None if the status is below 400."""
        return self.json()["error"]["code"] if self.status >= 400 else None

    @property
    def message(self) -> str:
        return str(self.json()["error"]["message"])


@dataclass
class Hub:
    """The URL of a hub, and a token of its first administrator."""

    url: str
    admin_token: str
    data_dir: Path

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def call(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request on a new connection. body: bytes are sent as they are, else as JSON."""
        all_headers = dict(headers or {})
        if token is not None:
            all_headers.setdefault("Authorization", f"Bearer {token}")
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            all_headers.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path, body, all_headers)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def upload(self, data: bytes, token: str | None = None) -> str:
        """Upload a whole file; returns its SHA-256."""
        digest = sha256(data).hexdigest()
        answer = self.call(
            "PUT", f"/v1/uploads/{digest}", token=token or self.admin_token, body=data
        )
        assert answer.status in (200, 201), answer.body
        return digest

    def commit(
        self, name: str, files: Mapping[str, bytes], token: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """Upload files and commit them to an existing repository; returns the answer."""
        operations = [
            {"op": "add", "path": path, "sha256": self.upload(data, token), "size": len(data)}
            for path, data in files.items()
        ]
        body = {"operations": operations, **more}
        path = f"/v1/repositories/{name}/commits"
        answer = self.call("POST", path, token=token or self.admin_token, body=body)
        assert answer.status == 201, answer.body
        result: dict[str, Any] = answer.json()
        return result

    def create(self, name: str, *, private: bool = False, token: str | None = None) -> None:
        body = {"name": name, "private": private}
        answer = self.call("POST", "/v1/repositories", token=token or self.admin_token, body=body)
        assert answer.status == 201, answer.body

    def wait_for_job(self, job_id: str, token: str | None = None) -> dict[str, Any]:
        """Wait until a job has ended; returns the job."""
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while True:
            answer = self.call("GET", f"/v1/jobs/{job_id}", token=token or self.admin_token)
            job: dict[str, Any] = answer.json()
            if job["state"] not in ("queued", "running"):
                return job
            assert time.monotonic() < deadline, job
            time.sleep(0.05)


@dataclass
class RunningHub(Hub):
    """A hub in a thread of this process, with its registry."""

    registry: Registry = field(kw_only=True)
    server: HubServer = field(kw_only=True)
    worker: Supervisor | None = field(kw_only=True)
    s3_url: str = field(kw_only=True, default="")  # with a port of S3 in the settings

    def user(self, name: str, scope: Any = "write") -> str:
        """Create a user; returns a token."""
        users.create_user(self.registry, name)
        return tokens.create_token(self.registry, name, scope)


@dataclass
class ServedHub(Hub):
    """A hub as the command `deltahub serve`, in a process group of its own."""

    process: subprocess.Popen[str] = field(kw_only=True)
    s3_url: str = field(kw_only=True, default="")  # with a port of S3 in its environment

    def kill_all(self) -> None:
        """Kill server and worker with SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def running_hub(
    data_dir: Path,
    *,
    with_worker: bool = False,
    server_settings: ServerSettings | None = None,
    disk: Disk | None = None,
    **settings: Any,
) -> Iterator[RunningHub]:
    """Run a hub on a free port of loopback. disk: None for a real one.

    settings: fields of the registry's Settings. Raw requests may call the hub `hub`.
    """
    server_settings = server_settings or ServerSettings(stop_grace_s=2)
    server_settings = server_settings.model_copy(
        update={"hosts": f"{server_settings.hosts},{RAW_HOST}"}
    )
    if disk is None and "database_url" not in settings:
        begin(data_dir)
    with Registry.open(Settings(data_dir=data_dir, **settings), disk) as registry:
        bootstrap.bootstrap_admin(registry)
        token = tokens.create_token(registry, "admin", "admin")
        worker = worker_supervisor(data_dir, 1.0, 5.0) if with_worker else None
        server = HubServer(registry, server_settings, has_worker=with_worker)
        listener = socket.create_server(("127.0.0.1", 0))
        s3_port = server_settings.s3_port
        of_s3 = None if s3_port is None else socket.create_server(("127.0.0.1", s3_port))
        s3_url = "" if of_s3 is None else url_of(of_s3)
        ready: list[str] = []
        is_ready = threading.Event()

        def on_ready(url: str) -> None:
            ready.append(url)
            is_ready.set()

        arguments = (listener, on_ready, of_s3)
        thread = threading.Thread(target=server.run_on, args=arguments, daemon=True)
        thread.start()
        if worker is not None:
            worker.start()
        try:
            assert is_ready.wait(START_TIMEOUT_S), "the server did not start"
            yield RunningHub(
                ready[0], token, data_dir, registry=registry, server=server, worker=worker,
                s3_url=s3_url,
            )  # fmt: skip
        finally:
            server.stop()
            if worker is not None:
                worker.stop()
            thread.join(30)
            listener.close()
            if of_s3 is not None:
                of_s3.close()


@contextmanager
def served_hub(
    data_dir: Path,
    *,
    token: str = "",
    environment: Mapping[str, str] | None = None,
    arguments: tuple[str, ...] = (),
    log: IO[bytes] | None = None,
    command: tuple[str, ...] = (sys.executable, "-m", "deltahub.server"),
) -> Iterator[ServedHub]:
    """Run `deltahub serve` on a free port. token: from an earlier start; the first prints one.

    log: file for its standard error, by default ours.
    """
    process = subprocess.Popen(
        [*command, "--data-dir", str(data_dir), "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        url, printed, s3_url = _read_start(process.stdout)
        yield ServedHub(url, printed or token, data_dir, process=process, s3_url=s3_url)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _read_start(output: IO[str]) -> tuple[str, str, str]:
    """(URL, token or "", URL for S3 or "") that the command prints until it listens."""
    token = s3_url = ""
    for line in output:
        words = line.split()
        if "token" in words:
            token = words[-1]
        if words[:1] == ["S3"]:
            s3_url = words[-1]
        if "listening" in words:
            return words[-1], token, s3_url
    raise AssertionError("the server ended before it listened")

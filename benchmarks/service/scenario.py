"""A pair of models through a hub and back, by both doors, with figures for every step."""

import hashlib
import http.client
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.hub import EmbeddedHub, HubFailed, finish_cli, start_cli
from benchmarks.memory.pair import Pair
from benchmarks.memory.sampler import Sampler, Usage, hub_roles, tree, wait_until

_CHUNK = 1 << 20
_JOB_TIMEOUT_S = 3600
MODEL = "model.safetensors"


@dataclass
class Step:
    """One transfer. bytes: of the model; moved: at the server's sockets, in its direction."""

    name: str
    size_bytes: int
    wall_s: float = 0.0
    moved_bytes: int = 0
    usage: dict[str, Usage] = field(default_factory=dict)

    @property
    def mb_per_s(self) -> float:
        return self.size_bytes / 1e6 / self.wall_s


class Scenario:
    """Steps on one hub; each verifies what it moved."""

    def __init__(self, hub: EmbeddedHub, pair: Pair, scratch: Path) -> None:
        self.steps: list[Step] = []
        self._hub = hub
        self._pair = pair
        self._scratch = scratch
        self._client_pid: int | None = None

    def run(self, say: Callable[[str], None]) -> list[Step]:
        """Every step in order. HubFailed if one fails or returns other bytes."""
        pair = self._pair
        cache = self._scratch / "trainer"
        with self._step("push base", say, is_push=True):
            self._cli(["push", str(pair.base), "admin/base"], cache)
        with self._step("push fine-tune", say, is_push=True):
            # Private, so that the public upload below finds nothing stored and must be encoded.
            self._cli(
                ["push", str(pair.fine_tune), "admin/tune", "--base", "admin/base", "--private"],
                cache,
            )
        with self._step("upload and ingest", say, is_push=True):
            self._upload(pair)
        shutil.rmtree(pair.fine_tune)  # its SHA-256 is known; the disk has to hold the pulls
        # Who pushed a fine-tune has its difference already; somebody else has the base alone.
        shutil.rmtree(cache)
        cache = self._scratch / "colleague"
        self._cli(["pull", "admin/base"], cache)
        with self._step("pull, base in cache", say, is_push=False):
            output = self._cli(["pull", "admin/tune", "--json"], cache)
        pulled = Path(json.loads(output)["path"]) / MODEL
        _expect(_sha256_of(pulled), pair.fine_tune_sha256, "pull, base in cache")
        shutil.rmtree(cache)
        with self._step("download from the server", say, is_push=False):
            digest = self._download("admin/uploaded")
        _expect(digest, pair.fine_tune_sha256, "download from the server")
        shutil.rmtree(pair.base)
        empty = self._scratch / "empty"
        with self._step("pull, empty cache", say, is_push=False):
            output = self._cli(["pull", "admin/tune", "--json"], empty)
        pulled = Path(json.loads(output)["path"]) / MODEL
        _expect(_sha256_of(pulled), pair.fine_tune_sha256, "pull, empty cache")
        shutil.rmtree(empty)
        return self.steps

    @contextmanager
    def _step(self, name: str, say: Callable[[str], None], *, is_push: bool) -> Iterator[None]:
        step = Step(name, self._pair.size_bytes)
        before, began = self._hub.traffic(), time.monotonic()
        with Sampler(self._roles) as sampler:
            yield
            step.wall_s = time.monotonic() - began
        moved = self._hub.traffic() - before
        step.moved_bytes = moved.received_bytes if is_push else moved.sent_bytes
        step.usage = sampler.usage
        self.steps.append(step)
        peaks = ", ".join(
            f"{role} {usage.peak_bytes >> 20} MiB" for role, usage in sorted(step.usage.items())
        )
        say(f"  {name}: {step.wall_s:.1f} s, {step.mb_per_s:.0f} MB/s, peak {peaks}")

    def _roles(self) -> dict[str, list[int]]:
        roles = hub_roles(self._hub.pid)
        client = self._client_pid
        if client is not None:
            roles["client"] = list(tree(client))
        return roles

    def _cli(self, arguments: list[str], cache: Path) -> str:
        process = start_cli(arguments, self._hub.client_environment(cache))
        self._client_pid = process.pid
        try:
            return finish_cli(process)
        finally:
            self._client_pid = None

    # -- any HTTP client: whole files, no SDK -----------------------------------------------

    def _upload(self, pair: Pair) -> None:
        operations = []
        for path in sorted(pair.fine_tune.iterdir()):
            digest = pair.fine_tune_sha256 if path.name == MODEL else _sha256_of(path)
            size = path.stat().st_size
            with path.open("rb") as file:
                self._request("PUT", f"/v1/uploads/{digest}", file, {"Content-Length": str(size)})
            operations.append({"op": "add", "path": path.name, "sha256": digest, "size": size})
        self._call("POST", "/v1/repositories", {"name": "admin/uploaded", "private": False})
        commit = {
            "ref": "main",
            "message": "benchmark",
            "parent": None,
            "base": "admin/base",
            "operations": operations,
        }
        answer = self._call("POST", "/v1/repositories/admin/uploaded/commits", commit)
        job: dict[str, Any] = {}

        def is_done() -> bool:
            job.update(self._call("GET", f"/v1/jobs/{answer['job_id']}", None))
            return job["state"] not in ("queued", "running")

        if not wait_until(is_done, _JOB_TIMEOUT_S, pause_s=0.2) or job["state"] != "done":
            raise HubFailed(f"the ingest job ended as {job}")

    def _download(self, repository: str) -> str:
        path = f"/v1/repositories/{repository}/files/{MODEL}?revision=main"
        connection = self._connect()
        connection.request("GET", path, headers=self._headers())
        answer = connection.getresponse()
        if answer.status != 200:
            raise HubFailed(f"GET {path}: {answer.status}")
        digest = hashlib.sha256()
        while chunk := answer.read(_CHUNK):
            digest.update(chunk)
        connection.close()
        return digest.hexdigest()

    def _call(self, method: str, path: str, body: object) -> Any:
        data = None if body is None else json.dumps(body).encode()
        return json.loads(self._request(method, path, data, {"Content-Type": "application/json"}))

    def _request(self, method: str, path: str, body: Any, headers: dict[str, str]) -> bytes:
        connection = self._connect()
        # http.client sends a file in pieces of `blocksize`.
        connection.request(method, path, body=body, headers={**headers, **self._headers()})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if answer.status >= 300:
            raise HubFailed(f"{method} {path}: {answer.status} {data[:500]!r}")
        return data

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._hub.url)
        assert parts.hostname is not None, "a hub's URL names a host"
        return http.client.HTTPConnection(
            parts.hostname, parts.port, timeout=_JOB_TIMEOUT_S, blocksize=_CHUNK
        )

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._hub.token}"}


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _expect(found: str, expected: str, step: str) -> None:
    if found != expected:
        raise HubFailed(f"{step}: the file came back with SHA-256 {found}, not {expected}")

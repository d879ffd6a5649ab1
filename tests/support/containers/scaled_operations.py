"""What a campaign of kills does beside pushes: merges, and the operator's garbage collections."""

import subprocess
import time
from contextlib import suppress
from http.client import HTTPException
from random import Random
from typing import Any, Protocol

from support.containers.scaled_hub import ScaledHub
from support.service.hub import Hub
from support.service.workload import Acknowledged, ask

MERGE_S = 240
_WEIGHTS = "model.safetensors"


class Operation(Protocol):
    """Something that was begun, and may have to be begun again because a part was killed."""

    def begin(self) -> None: ...

    def is_over(self) -> bool: ...

    def end(self) -> bool:
        """Wait for its end; whether it was acknowledged."""


class Collection:
    """`deltahub gc --apply` beside a hub that works."""

    # Longer than a step of a job takes, with the start of another worker; see docs/cli.md.
    GRACE_S = 120

    def __init__(self, parts: ScaledHub) -> None:
        self._parts = parts
        self.begin()

    def begin(self) -> None:
        self._process: subprocess.Popen[str] = self._parts.operating(
            "gc", "--apply", "--grace", f"{self.GRACE_S}"
        )

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> bool:
        said, _ = self._process.communicate(timeout=MERGE_S)
        with self._parts.log("gc").open("a") as log:
            log.write(said)
        return self._process.returncode == 0


class Merge:
    """A merge of fine-tunes that were acknowledged, asked for with a key of its own."""

    def __init__(
        self, hub: Hub, acknowledged: Acknowledged, arguments: dict[str, Any], key: str
    ) -> None:
        self._hub = hub
        self._acknowledged = acknowledged
        self._arguments = arguments
        self._key = key
        self._job = ""
        self.begin()

    @classmethod
    def of(cls, hub: Hub, acknowledged: Acknowledged, key: str, chance: Random) -> "Merge":
        """A merge of two or three fine-tunes of one base."""
        found: dict[str, dict[str, str]] = {}  # repository -> SHA-256 of weights -> revision
        for (name, commit, path), digest in acknowledged.items():
            if path == _WEIGHTS and name.startswith("admin/tuned-"):
                found.setdefault(name, {}).setdefault(digest, f"{name}@{commit}")
        bases = {name for name, _, _ in acknowledged}
        name, tuned = chance.choice(
            [
                (base, sorted(tuned.values()))
                for name, tuned in found.items()
                if len(tuned) >= 2 and (base := name.replace("tuned", "base")) in bases
            ]
        )
        models = chance.sample(tuned, min(len(tuned), chance.choice((2, 3))))
        tasks = [f"task-{number}" for number in range(len(models))]
        arguments = {
            "name": f"admin/merged-{key}", "base": name, "models": models, "tasks": tasks,
            "lossless": chance.random() < 0.5,
        }  # fmt: skip
        return cls(hub, acknowledged, arguments, key)

    def begin(self) -> None:
        """Ask for it, if the hub can be reached; the same key never makes a second job."""
        if self._job:
            return
        body = {"kind": "merge", "arguments": self._arguments, "idempotency_key": self._key}
        with suppress(OSError, HTTPException):
            answer = self._hub.call("POST", "/v1/jobs", token=self._hub.admin_token, body=body)
            assert answer.status in (200, 202, 502, 503, 504), answer.body
            self._job = answer.json()["id"] if answer.status < 300 else ""

    def is_over(self) -> bool:
        if not self._job:
            return True
        job = ask(self._hub, "GET", f"/v1/jobs/{self._job}").json()
        assert job["state"] in ("queued", "running", "done"), job
        return bool(job["state"] == "done")

    def end(self) -> bool:
        if not self._job:
            return False
        deadline = time.monotonic() + MERGE_S
        while not self.is_over():
            assert time.monotonic() < deadline, self._job
            time.sleep(0.3)
        self._record()
        return True

    def _record(self) -> None:
        """What each branch holds; a lossless one has the weights of its fine-tune."""
        arguments = self._arguments
        name = arguments["name"]
        for branch in ("main", *arguments["tasks"]):
            url = f"/v1/repositories/{name}/revision?revision={branch}"
            revision = ask(self._hub, "GET", url).json()
            for entry in revision["entries"]:
                self._acknowledged[name, revision["commit"], entry["path"]] = entry["sha256"]
            if arguments["lossless"] and branch != "main":
                model = arguments["models"][arguments["tasks"].index(branch)]
                expected = self._acknowledged[(*model.split("@"), _WEIGHTS)]
                assert self._acknowledged[name, revision["commit"], _WEIGHTS] == expected

"""Real clients that push to a hub while it is killed, and a record of what was acknowledged."""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import close_session, hf_hub_download, snapshot_download

from deltahub.client import Hub as Client
from support.models import tiny_models
from support.service.client_process import COMMAND
from support.service.hub import Answer, Hub

N_MODELS = 4
TIMEOUT_S = 120
_HF_UPLOAD = """
import sys
from huggingface_hub import HfApi
url, token, name, folder = sys.argv[1:]
api = HfApi(endpoint=url, token=token)
api.create_repo(name, exist_ok=True)
print(api.upload_folder(repo_id=name, folder_path=folder).oid)
"""

# (name of the repository, commit, path) -> SHA-256
Acknowledged = dict[tuple[str, str, str], str]


@dataclass
class Workload:
    """Pushes of trained models by a random client; everything is drawn from `chance`."""

    root: Path
    chance: random.Random
    acknowledged: Acknowledged = field(default_factory=dict)
    n_pushes: int = 0

    def start(self, hub: Hub) -> "Upload":
        """Begin a push of new contents by a random client."""
        number = self.chance.randrange(N_MODELS)
        return self.push(hub, number, is_tuned=self.chance.random() < 0.6)

    def push(self, hub: Hub, number: int, *, is_tuned: bool) -> "Upload":
        """Begin a push of one of the bases, or of a fine-tune of it that has new weights."""
        kind = "tuned" if is_tuned else "base"
        tensors = self._tuned(number) if is_tuned else tiny_models.base(number)
        data = tiny_models.to_file(tiny_models.cast(tensors, torch.bfloat16))
        notes = self.chance.randbytes(self.chance.choice((100, 30_000, 2_000_000)))
        folder = self._folder()
        (folder / "model.safetensors").write_bytes(data)
        (folder / f"{self.chance.choice(('notes', 'more'))}.bin").write_bytes(notes)
        (folder / "README.md").write_text(f"# push {self.n_pushes}\n")
        name = f"admin/{kind}-{number}"
        if self.chance.random() < 0.4:
            arguments = [sys.executable, "-c", _HF_UPLOAD, hub.url, hub.admin_token, name]
            return Upload(self, name, folder, [*arguments, str(folder)], hub.admin_token)
        options = ["--base", f"admin/base-{number}"] * is_tuned
        options += ["--no-wait"] * (self.chance.random() < 0.3)
        return self._push_by_command(hub, folder, name, options)

    def push_large(self, hub: Hub, size_bytes: int) -> "Upload":
        """Begin a push of a plain file of this size, as a further revision."""
        folder = self._folder()
        (folder / f"large-{self.n_pushes}.bin").write_bytes(self.chance.randbytes(size_bytes))
        return self._push_by_command(hub, folder, "admin/large", [])

    def _tuned(self, number: int) -> tiny_models.Tensors:
        """The fine-tune, or a point short of it or beyond it."""
        way, base = self.chance.uniform(0.3, 1.5), tiny_models.base(number)
        tuned = tiny_models.finetune(1e-5, number)
        return {name: base[name] + way * (tuned[name] - base[name]) for name in base}

    def _folder(self) -> Path:
        self.n_pushes += 1
        folder = self.root / "pushes" / f"{self.n_pushes}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _push_by_command(self, hub: Hub, folder: Path, name: str, options: list[str]) -> "Upload":
        arguments = [*COMMAND, "push", str(folder), name, "--json", "--url", hub.url, *options]
        return Upload(self, name, folder, arguments, hub.admin_token)


class Upload:
    """One push by a client in a process of its own. What the client complains of is in a log."""

    process: subprocess.Popen[str]

    def __init__(
        self, workload: Workload, name: str, folder: Path, arguments: list[str], token: str
    ) -> None:
        self._workload = workload
        self._name = name
        self._folder = folder
        self._arguments = arguments
        self._environment = {
            **os.environ, "DELTAHUB_TOKEN": token, "HF_HUB_DISABLE_PROGRESS_BARS": "1"
        }  # fmt: skip
        self.begin()

    def begin(self) -> None:
        """Begin the push, or the same one again."""
        with (self._workload.root / "clients.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._arguments, env=self._environment, cwd=self._workload.root, text=True,
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> bool:
        """Whether it was still under way."""
        was_over = self.is_over()
        self.process.kill()
        return not was_over

    def end(self) -> bool:
        """Whether the push was acknowledged; its files are then recorded."""
        out, _ = self.process.communicate(timeout=TIMEOUT_S)
        if self.process.returncode != 0:
            return False
        commit = json.loads(out)["commit"] if out.startswith("{") else out.strip()
        for path in self._folder.iterdir():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            self._workload.acknowledged[self._name, commit, path.name] = digest
        return True


def ask(hub: Hub, method: str, path: str, body: Any = None) -> Answer:
    """The hub's answer. Asked again, for a while, if the hub, or its store, says it is away."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            answer = hub.call(method, path, token=hub.admin_token, body=body)
            if answer.status not in (502, 503, 504):
                return answer
            said = answer.body
        except (OSError, HTTPException) as exc:
            said = repr(exc).encode()
        assert time.monotonic() < deadline, (method, path, said)
        time.sleep(0.2)


def prove(hub: Hub, name: str, commit: str, path: str, expected: str) -> None:
    """Read a file of this SHA-256."""
    answer = ask(hub, "GET", f"/v1/repositories/{name}/files/{path}?revision={commit}")
    assert answer.status == 200, (name, commit, path, answer.body)
    assert hashlib.sha256(answer.body).hexdigest() == expected, (name, commit, path)


def doors(hub: Hub, sdk: Client, root: Path) -> dict[str, Callable[[str, str, str], bytes]]:
    """Name of a door -> function of (repository, commit, path) that reads the file through it."""

    def whole(name: str, commit: str, path: str) -> bytes:
        url = f"/v1/repositories/{name}/files/{path}?revision={commit}"
        answer = hub.call("GET", url, token=hub.admin_token)
        assert answer.status == 200, answer.body
        return answer.body

    def ranges(name: str, commit: str, path: str) -> bytes:
        url, found, total = f"/{name}/resolve/{commit}/{path}", b"", 1
        while len(found) < total:
            headers = {"Range": f"bytes={len(found)}-{len(found) + 99_999}"}
            answer = hub.call("GET", url, token=hub.admin_token, headers=headers)
            assert answer.status == 206, answer.body
            total = int(answer.headers["Content-Range"].rpartition("/")[2])
            found += answer.body
        return found

    def hugging_face(name: str, commit: str, path: str) -> bytes:
        return Path(
            hf_hub_download(
                name, path, revision=commit, endpoint=hub.url, token=hub.admin_token,
                cache_dir=root / "hf",
            )
        ).read_bytes()  # fmt: skip

    @cache
    def folder_of(name: str, commit: str) -> Path:
        folder = snapshot_download(
            name, revision=commit, endpoint=hub.url, token=hub.admin_token,
            cache_dir=root / "snapshots",
        )  # fmt: skip
        return Path(folder)

    def snapshot(name: str, commit: str, path: str) -> bytes:
        return (folder_of(name, commit) / path).read_bytes()

    def pull(name: str, commit: str, path: str) -> bytes:
        folder = root / "pulls" / name / commit
        if not folder.exists():
            sdk.pull(name, revision=commit, to=folder, sha256=True)
        return (folder / path).read_bytes()

    return {
        "whole": whole,
        "ranges": ranges,
        "hugging_face": hugging_face,
        "snapshot": snapshot,
        "pull": pull,
    }


def wrong_files(
    hub: Hub, root: Path, acknowledged: Acknowledged
) -> Iterator[tuple[str, str, str, str]]:
    """(door, repository, commit, path) of every acknowledged file that a door gives otherwise."""
    with Client(hub.url, hub.admin_token) as sdk:
        for door, read in doors(hub, sdk, root).items():
            for (name, commit, path), expected in acknowledged.items():
                if hashlib.sha256(read(name, commit, path)).hexdigest() != expected:
                    yield door, name, commit, path
    close_session()

"""Loses a hub at work with all its disks after backups of it, and restores what they hold."""

import random
import shutil
import threading
import time
from pathlib import Path

from support.models import tiny_models
from support.service.client_process import Finished, deltahub
from support.service.hub import START_TIMEOUT_S, Hub, ServedHub, served_hub


class Traffic:
    """Pushes of models and of other files, deletions and collections, until it is stopped."""

    def __init__(self, hub: ServedHub) -> None:
        self._hub = hub
        self._chance = random.Random(7)
        self._lock = threading.Lock()
        # (repository, path) -> bytes that the hub has acknowledged
        self._files: dict[tuple[str, str], bytes] = {}
        self._deleted: set[str] = set()
        self._is_stopped = threading.Event()
        self.errors: list[str] = []
        self.n_pushes = 0
        self._threads = [
            threading.Thread(target=self._run, args=(work,)) for work in (self._push, self._collect)
        ]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_stopped.set()
        for thread in self._threads:
            thread.join()

    def acknowledged(self) -> dict[tuple[str, str], bytes]:
        with self._lock:
            return dict(self._files)

    def wait_for(self, n_files: int) -> None:
        """Until so many files are there that the hub has acknowledged."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(self.acknowledged()) < n_files and not self.errors:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def deleted(self) -> set[str]:
        with self._lock:
            return set(self._deleted)

    def _run(self, work: object) -> None:
        while not self._is_stopped.is_set():
            try:
                work()  # type: ignore[operator]
            except Exception as exc:
                self.errors.append(repr(exc))
                return

    def _push(self) -> None:
        self.n_pushes += 1
        name = f"admin/m{self.n_pushes}"
        self._hub.create(name)
        # Of a file that the hub has already it does not read the body, which this client sends.
        tensors = tiny_models.finetune(1e-5 + self.n_pushes * 1e-7, self.n_pushes % 5)
        files = {
            "model.safetensors": tiny_models.to_file(tensors),
            "notes.bin": self._chance.randbytes(self._chance.choice((100, 300_000))),
        }
        commit = self._hub.commit(name, files)
        with self._lock:
            self._files.update({(name, path): data for path, data in files.items()})
        if self.n_pushes % 3:
            self._hub.wait_for_job(commit["job_id"])
        if self.n_pushes % 4 == 0:
            victim = f"admin/m{self.n_pushes - 2}"
            with self._lock:  # it may be in a backup that begins now, or not
                self._deleted.add(victim)
                for path in ("model.safetensors", "notes.bin"):
                    self._files.pop((victim, path), None)
            self._hub.call("DELETE", f"/v1/repositories/{victim}", token=self._hub.admin_token)

    def _collect(self) -> None:
        done = deltahub("gc", "--apply", "--grace", "0", "--data-dir", str(self._hub.data_dir))
        if done.status != 0:
            self.errors.append(done.err)


def wrong_files(hub: Hub, files: dict[tuple[str, str], bytes]) -> list[tuple[str, str]]:
    found = []
    for (name, path), data in files.items():
        answer = hub.call("GET", f"/v1/repositories/{name}/files/{path}", token=hub.admin_token)
        if (answer.status, answer.body) != (200, data):
            found.append((name, path))
    return found


def back_up(data_dir: Path, place: Path, *more: str, **environment: str) -> Finished:
    command = ("backup", "--to", str(place), "--data-dir", str(data_dir), *more)
    return deltahub(*command, environment=environment)


def lose_and_restore(tmp_path: Path, n_backups: int) -> None:
    """Every file that the hub had said to have before a backup began comes back through HTTP.

    Each backup but the last is followed by one that is killed.
    """
    data_dir, place = tmp_path / "data", tmp_path / "place"
    # Readers of this test need no packs for longer than a second: much is deleted meanwhile.
    environment = {"DELTAHUB_READ_LEASE_S": "1"}
    promised: dict[str, dict[tuple[str, str], bytes]] = {}
    with served_hub(data_dir, environment=environment) as hub:
        token = hub.admin_token
        with Traffic(hub) as traffic:
            for number in range(n_backups):
                traffic.wait_for(2 + 6 * (number + 1))
                before = traffic.acknowledged()
                done = back_up(data_dir, place, "--json")
                assert done.status == 0, done.err
                name = done.json()["snapshot"]["name"]
                # What was deleted while the backup began may be in it or not.
                gone = traffic.deleted()
                promised[name] = {key: data for key, data in before.items() if key[0] not in gone}
                if number < n_backups - 1:
                    killed = back_up(data_dir, place, DELTAHUB_FAILPOINT="backup.object.after_put")
                    assert killed.status == -9
        assert traffic.errors == []
        assert traffic.n_pushes > n_backups
        hub.kill_all()
    shutil.rmtree(data_dir)
    for number, (name, files) in enumerate(promised.items()):
        elsewhere = tmp_path / f"elsewhere-{number}"
        command = ("restore", "--from", str(place), "--snapshot", name)
        done = deltahub(*command, "--data-dir", str(elsewhere))
        assert done.status == 0, done.err
        checked = deltahub("fsck", "--read-data", "--data-dir", str(elsewhere))
        assert (checked.status, checked.out) == (0, "clean\n"), checked.err
        with served_hub(elsewhere, token=token) as restored:
            assert wrong_files(restored, files) == []
            restored.create("admin/afterwards")
            commit = restored.commit("admin/afterwards", {"a.bin": b"a" * 5000})
            assert restored.wait_for_job(commit["job_id"])["state"] == "done"
        checked = deltahub("fsck", "--read-data", "--data-dir", str(elsewhere))
        assert checked.status == 0, checked.out
    assert len(list(promised.values())[-1]) > 4

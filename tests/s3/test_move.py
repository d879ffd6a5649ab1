"""A hub moves to a bucket and back while clients push and read, and nobody notices."""

import random
import secrets
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.service.hub import Hub, served_hub
from support.service.seaweedfs import S3Service
from support.service.store_commands import output_of, run_command


class Clients:
    """Push and read for as long as the context is open, and remember what was acknowledged."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.files: dict[tuple[str, str], bytes] = {}
        self.jobs: list[str] = []
        self.errors: list[BaseException] = []
        self.n_reads = 0
        self._random = random.Random(5)
        self._ended = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._ended.clear()
        with ThreadPoolExecutor(3) as pool:
            work = [pool.submit(each) for each in (self._push, self._read, self._read)]
            try:
                yield
            finally:
                self._ended.set()
            for each in work:
                each.result()

    def _push(self) -> None:
        while not self._ended.is_set():
            self.push_one()

    def push_one(self) -> None:
        number = len(self.jobs)
        name = f"admin/m{number}"
        files = {
            "weights.bin": secrets.token_bytes(300_000),
            **{f"{i}.json": secrets.token_bytes(40) for i in range(3)},
        }
        self.hub.create(name)
        commit = self.hub.commit(name, files)
        self.files |= {(name, path): data for path, data in files.items()}
        self.jobs.append(commit["job_id"])

    def _read(self) -> None:
        while not self._ended.is_set():
            known = list(self.files)
            if known:
                self.check_file(self._random.choice(known))

    def check_file(self, file: tuple[str, str]) -> None:
        name, path = file
        answer = self.hub.call("GET", f"/v1/repositories/{name}/files/{path}")
        assert answer.status == 200, (file, answer.body)
        assert answer.body == self.files[file], file
        self.n_reads += 1

    def check_all(self) -> None:
        for file in self.files:
            self.check_file(file)

    def check_jobs(self) -> None:
        for job in self.jobs:
            assert self.hub.wait_for_job(job)["state"] == "done"


@pytest.mark.timeout(300)
def test_a_hub_under_load_moves_to_a_bucket_to_another_and_back(
    service: S3Service, store_url: str, tmp_path: Path
) -> None:
    data_dir, environment = tmp_path / "data", service.environment
    other_url = service.make_bucket(f"test-{secrets.token_hex(8)}")
    log = tmp_path / "log"
    with log.open("wb") as file, served_hub(data_dir, environment=environment, log=file) as hub:
        clients = Clients(hub)
        for _ in range(5):
            clients.push_one()
        for url in (store_url, other_url, "folder", store_url):
            with clients.at_work():
                before = len(clients.files)
                output_of(data_dir, "store", "copy", "--to", url, environment=environment)
                assert output_of(data_dir, "fsck", environment=environment) == "clean\n"
                while len(clients.files) < before + 8:
                    clients.check_file(next(iter(clients.files)))
            clients.check_all()
            shown = output_of(data_dir, "store", "show", environment=environment)
            assert shown.startswith(f"the objects lie in {url}")
        clients.check_jobs()
        # Nothing is needed of the places that were left.
        shutil.rmtree(data_dir / "objects")
        _empty(service, other_url)
        clients.check_all()
        assert output_of(data_dir, "fsck", "--read-data", environment=environment) == "clean\n"
        assert clients.n_reads > 100
        clients.push_one()
        token = hub.admin_token
    assert log.read_text().count("the hub's objects lie in") >= 4
    with served_hub(data_dir, token=token, environment=environment) as hub:
        clients.hub = hub
        clients.check_all()
    moved = run_command(
        data_dir, "gc", "--apply", environment={**environment, "DELTAHUB_STORE_URL": other_url}
    )
    assert moved.returncode == 2
    assert "moved" in moved.stderr
    assert store_url in moved.stderr


@pytest.mark.timeout(300)
def test_a_hub_killed_in_the_middle_of_a_copy_serves_again(
    service: S3Service, store_url: str, tmp_path: Path
) -> None:
    data_dir, environment = tmp_path / "data", service.environment
    token = ""
    clients: Clients | None = None
    for failpoint in ("store.take_file.after_rename:3", "landing.complete.after_store:4",
                      "packs.put.after_put", "small_files.after_store:2"):  # fmt: skip
        with served_hub(
            data_dir, token=token,
            environment={**environment, "DELTAHUB_FAILPOINT": failpoint},
        ) as hub, ThreadPoolExecutor(1) as pool:  # fmt: skip
            token = hub.admin_token
            clients = clients or Clients(hub)
            clients.hub = hub
            to = "folder" if "packs" in failpoint else store_url
            copy = pool.submit(
                output_of, data_dir, "store", "copy", "--to", to, environment=environment
            )
            for _ in range(6):
                try:
                    clients.push_one()
                except (OSError, AssertionError):
                    break  # the hub is dead, or its answer was not whole
            copy.result()
            hub.kill_all()
        with served_hub(data_dir, token=token, environment=environment) as hub:
            clients.hub = hub
            clients.check_all()
            clients.check_jobs()
            clients.check_all()
    output_of(data_dir, "fsck", "--read-data", environment=environment)


def _empty(service: S3Service, url: str) -> None:
    bucket = url.removeprefix("s3://").split("/")[0]
    client = service.client()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for item in page.get("Contents", ()):
            client.delete_object(Bucket=bucket, Key=item["Key"])

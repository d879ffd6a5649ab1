"""What clients remember of chunks that they have sent, once the hub has put the xorbs away."""

import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from clients.environments import NEWEST, Environment
from clients.machine import Machine
from deltahub.registry.db.models import Xorb
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from support.service.hub import ServedHub, served_hub

NAME = "admin/m"
# Little, but more than the hub's test for "small" files, and two chunks at the least.
SIZE = 3_000_000
TTL_S = 5
WAIT_S = 30

SEND = """
from huggingface_hub import HfApi
HfApi().create_repo(name, exist_ok=True)
result = HfApi().upload_file(repo_id=name, path_or_fileobj=file, path_in_repo=path).oid
"""
# As a client does that is killed before it commits.
UNCOMMITTED = """
from huggingface_hub import CommitOperationAdd, HfApi
api = HfApi()
api.create_repo(name, exist_ok=True)
api.preupload_lfs_files(name, [CommitOperationAdd(path, file)])
result = None
"""
GET = """
from huggingface_hub import hf_hub_download
result = hf_hub_download(name, path, force_download=True)
"""
CLI = [sys.executable, "-c", "from deltahub.client.cli.main import main; main()"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ServedHub]:
    """A hub that keeps uploads for a moment."""
    environment = {"DELTAHUB_UPLOAD_TTL_S": str(TTL_S)}
    with served_hub(tmp_path / "data", environment=environment) as hub:
        yield hub


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "model.bin"
    file.write_bytes(random.Random(5).randbytes(SIZE))
    return file


def test_what_is_in_a_file_is_not_sent_again_after_its_xorbs_are_gone(
    hub: ServedHub, file: Path, environments: dict[str, Environment], tmp_path: Path
) -> None:
    sender = Machine(environments[NEWEST], tmp_path / "home", hub.url, hub.admin_token)
    sender.run(SEND, name=NAME, file=file, path="one.bin")
    assert n_xorbs(hub) == 1
    wait_for_ingest(hub)
    collect_until_no_xorb_is_left(hub)
    assert epoch(hub) == 0

    before = received(hub)
    sender.run(SEND, name=NAME, file=file, path="two.bin")
    assert received(hub) - before < 50_000  # a shard
    assert n_xorbs(hub) == 0

    data = bytearray(file.read_bytes())
    data[SIZE // 2] ^= 0xFF
    file.write_bytes(data)
    before = received(hub)
    sender.run(SEND, name=NAME, file=file, path="three.bin")
    assert received(hub) - before < SIZE // 4
    assert n_xorbs(hub) == 1
    assert epoch(hub) == 0

    changed = sha256(data).hexdigest()
    data[SIZE // 2] ^= 0xFF
    wanted = {"two.bin": sha256(data).hexdigest(), "three.bin": changed}
    for client in ("hub-0.34", NEWEST):
        reader = Machine(environments[client], tmp_path / f"reader-{client}", hub.url, None)
        for path, digest in wanted.items():
            got = Path(reader.run(GET, name=NAME, path=path)).read_bytes()
            assert sha256(got).hexdigest() == digest, (client, path)


def test_what_was_never_committed_is_sent_again_after_it_is_gone(
    hub: ServedHub, file: Path, environments: dict[str, Environment], tmp_path: Path
) -> None:
    sender = Machine(environments[NEWEST], tmp_path / "home", hub.url, hub.admin_token)
    sender.run(UNCOMMITTED, name=NAME, file=file, path="one.bin")
    assert (n_xorbs(hub), epoch(hub)) == (1, 0)
    # Until then it remembers them.
    before = received(hub)
    sender.run(UNCOMMITTED, name=NAME, file=file, path="one.bin")
    assert received(hub) - before < 50_000
    # What came later expires later: a file that outlives the xorb has its chunks.
    time.sleep(TTL_S + 1)
    collect_until_no_xorb_is_left(hub)
    assert epoch(hub) == 1
    before = received(hub)
    sender.run(SEND, name=NAME, file=file, path="one.bin")
    assert received(hub) - before > SIZE
    assert n_xorbs(hub) == 1
    there = hub.call("GET", f"/{NAME}/resolve/main/one.bin")
    assert there.body == file.read_bytes()


def test_a_hub_from_a_backup_says_which_chunks_it_lacks(
    file: Path, environments: dict[str, Environment], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = ("--port", str(free.getsockname()[1]))
    data_dir, backup = tmp_path / "data", tmp_path / "backup"
    create = "from huggingface_hub import HfApi\nresult = HfApi().create_repo(name).repo_id"
    with served_hub(data_dir, arguments=port) as hub:
        sender = Machine(environments[NEWEST], tmp_path / "home", hub.url, hub.admin_token)
        sender.run(create, name=NAME)
    shutil.copytree(data_dir, backup)
    with served_hub(data_dir, arguments=port):
        sender.run(SEND, name=NAME, file=file, path="one.bin")
    shutil.rmtree(data_dir)
    backup.rename(data_dir)
    assert sender.token is not None
    with served_hub(data_dir, token=sender.token, arguments=port) as hub:
        refused = sender.refused(SEND, name=NAME, file=file, path="one.bin")
        assert "this hub does not have all chunks of xorb " in refused.output
        assert "start the upload again" in refused.output
        assert epoch(hub) == 1
        # As it says.
        sender.run(SEND, name=NAME, file=file, path="one.bin")
        assert hub.call("GET", f"/{NAME}/resolve/main/one.bin").body == file.read_bytes()


def collect_until_no_xorb_is_left(hub: ServedHub) -> None:
    """`deltahub gc --apply`, beside the hub, once the upload has expired."""
    assert n_xorbs(hub) == 1
    deadline = time.monotonic() + WAIT_S
    while n_xorbs(hub):
        assert time.monotonic() < deadline
        time.sleep(1)
        gc = [*CLI, "gc", "--apply", "--data-dir", str(hub.data_dir)]
        done = subprocess.run(gc, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def wait_for_ingest(hub: ServedHub) -> None:
    with Registry.open(Settings(data_dir=hub.data_dir)) as registry, registry.db.read() as session:
        job_ids = session.scalars(select(Job.id)).all()
    assert job_ids
    for job_id in job_ids:
        assert hub.wait_for_job(job_id)["state"] == "done"


def epoch(hub: ServedHub) -> int:
    """What the hub's address of its service for the repository tells clients."""
    said = call(hub, f"/api/models/{NAME}/xet-write-token/main")
    _, cas, number, _ = said["casUrl"].removeprefix(hub.url).split("/")
    assert cas == "cas"
    return int(number.removeprefix("e"))


def n_xorbs(hub: ServedHub) -> int:
    with Registry.open(Settings(data_dir=hub.data_dir)) as registry, registry.db.read() as session:
        return len(session.scalars(select(Xorb.id)).all())


def received(hub: ServedHub) -> int:
    """Bytes that clients have sent to the hub."""
    return int(call(hub, "/v1/metrics")["received_bytes"])


def call(hub: ServedHub, path: str) -> Any:
    answer = hub.call("GET", path, token=hub.admin_token)
    assert answer.status == 200, answer.body
    return answer.json()

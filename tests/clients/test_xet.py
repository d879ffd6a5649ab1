"""Xet transfers that are cut in the middle: of a client, of the hub, of a file on its disk."""

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from clients.conftest import Library, World
from clients.environments import NEWEST, Environment
from clients.machine import Machine
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.server.hf.xet import downloads
from support.service.hub import running_hub, served_hub
from support.service.tcp_proxy import damaging_proxy

MIB = 1 << 20
KILLS = max(4, int(os.environ.get("DELTAHUB_KILLS", "200")) // 50)
TIMEOUT_S = 90
SEND = """
from huggingface_hub import HfApi
HfApi().create_repo(name, exist_ok=True)
result = HfApi().upload_file(repo_id=name, path_or_fileobj=file, path_in_repo="model.bin").oid
"""
GET = """
from huggingface_hub import hf_hub_download
result = hf_hub_download(name, "big.bin")
"""

COPY = """
from huggingface_hub import CommitOperationCopy, HfApi
api = HfApi()
api.create_repo(name)
def copy(source, path):
    operation = CommitOperationCopy(
        path, "copied.bin", src_repo_id=source, src_repo_type="model"
    )
    return api.create_commit(name, [operation], commit_message="Copied").oid
result = [copy("alice/big", "big.bin"), caught(lambda: copy("alice/secret", "key.bin"))]
"""
LARGE = """
from huggingface_hub import constants, hf_hub_download
assert constants.MAX_HTTP_DOWNLOAD_SIZE == 50_000_000_000
constants.MAX_HTTP_DOWNLOAD_SIZE = 1 << 20
result = [hf_hub_download("admin/m", path) for path in ("large.bin", "small.bin")]
"""


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kill(process: "subprocess.Popen[bytes]") -> None:
    assert process.poll() is None, "it was over before"
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_a_file_of_several_links_comes_over_them_at_once(
    environments: dict[str, Environment], tmp_path: Path
) -> None:
    data = random.Random(3).randbytes(96 * MIB)  # one link for each 64 MiB
    # Without a worker, which would have the processor meanwhile.
    with (
        running_hub(tmp_path / "data") as hub,
        damaging_proxy(hub.address, delay_s=0.002) as proxy,
    ):
        hub.create("admin/many")
        hub.commit("admin/many", {"big.bin": data})
        reader = Machine(environments[NEWEST], tmp_path / "home", proxy.url, None)
        path = reader.run(GET, name="admin/many")
        assert Path(path).read_bytes() == data
        # Those of the client's are closed with it, which the proxy notices a moment later.
        wait_until(lambda: sum(one[2] for one in proxy.answers) == proxy.received)
        large = sorted(one for one in proxy.answers if one[2] > 16 * MIB)
    assert len(large) > 1, proxy.answers
    (_, end, _), (start, _, _), *_ = large
    assert end - start > 16 * MIB, large


@pytest.mark.long
def test_an_upload_whose_client_was_killed_sends_only_what_is_missing(
    newest: Machine, world: World, name: str, tmp_path: Path
) -> None:
    # Three xorbs: of 64, 64 and 32 MiB. One is sent at a time.
    data = random.Random(name).randbytes(160 * MIB)
    file = tmp_path / "model.bin"
    file.write_bytes(data)
    with damaging_proxy(world.hub.address, delay_upload_s=0.002) as proxy:
        one_by_one = {"HF_XET_FIXED_UPLOAD_CONCURRENCY": "1"}
        sender = newest.another(endpoint=proxy.url, settings=one_by_one)
        process = sender.start(SEND, name=name, file=file)
        wait_until(lambda: proxy.sent > 100 * MIB)
        kill(process)
        proxy.delay_upload_s = 0
        before = received(world)
        sender.run(SEND, name=name, file=file)
        sent = received(world) - before
    # Noise does not compress: two of the three xorbs, or only the smaller of them and one more.
    assert 32 * MIB < sent < 100 * MIB
    assert world.hashes(name)["model.bin"] == sha256(data).hexdigest()


def test_a_download_whose_client_was_killed_is_whole_after_the_next(
    newest: Machine, world: World, big_file: bytes
) -> None:
    with damaging_proxy(world.hub.address, delay_s=0.005) as proxy:
        reader = newest.another(endpoint=proxy.url)
        process = reader.start(GET, name="alice/big")
        wait_until(lambda: proxy.received > len(big_file) // 2)
        kill(process)
        proxy.delay_s = 0
        time.sleep(0.2)
        before = proxy.received
        path = reader.run(GET, name="alice/big")
        again = proxy.received - before
    assert Path(path).read_bytes() == big_file
    # Clients keep nothing of a file that is not whole: not less than all comes again, nor more.
    assert 0.99 < again / len(big_file) < 1.01


def test_a_file_that_another_repository_has_too_is_linked(
    newest: Machine, world: World, big_file: bytes, name: str
) -> None:
    world.hub.create(name, token=world.alice)
    world.hub.commit(name, {"other.bin": big_file}, world.alice)
    with damaging_proxy(world.hub.address) as proxy:
        reader = newest.another(endpoint=proxy.url)
        reader.run(GET, name="alice/big")
        before = proxy.received
        assert before > len(big_file)
        path = reader.run(GET.replace("big.bin", "other.bin"), name=name)
        again = proxy.received - before
    assert Path(path).read_bytes() == big_file
    assert again < 10_000


def test_a_file_is_copied_from_another_repository(
    newest: Machine, world: World, library: Library, big_file: bytes, name: str
) -> None:
    before = received(world)
    for_bob = newest.another(token=world.bob)
    of_bob = name.replace("alice", "bob")
    _, hidden = for_bob.run(COPY, name=of_bob)
    assert received(world) - before < 100_000
    sent = world.hub.call("GET", f"/{of_bob}/resolve/main/copied.bin")
    assert sent.body == big_file
    assert "RepositoryNotFoundError" in hidden["kinds"]


def test_what_is_too_large_for_plain_http_comes_through_xet(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in the client: a file is large from here on.
    monkeypatch.setattr(downloads, "MAX_HTTP_BYTES", MIB)
    data = random.Random(12).randbytes(3 * MIB)
    with running_hub(tmp_path / "data") as hub:
        hub.create("admin/m")
        hub.commit("admin/m", {"large.bin": data, "small.bin": data[:MIB]})
        there = machine.another(endpoint=hub.url, token=hub.admin_token)
        refused = there.refused(LARGE, env={"HF_HUB_DISABLE_XET": "1"})
        assert "too large" in refused.text
        large, small = there.run(LARGE)
        assert Path(large).read_bytes() == data
        assert Path(small).read_bytes() == data[:MIB]


def received(world: World) -> int:
    """Bytes that clients have sent to the hub."""
    answer = world.hub.call("GET", "/v1/metrics", token=world.hub.admin_token)
    return int(answer.json()["received_bytes"])


@pytest.mark.long
@pytest.mark.timeout(600)
def test_uploads_outlive_kills_of_the_hub_at_random_moments(
    environments: dict[str, Environment], tmp_path: Path
) -> None:
    chance = random.Random(11)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    data_dir, token = tmp_path / "data", ""
    hashes: dict[str, str] = {}
    upload_s = 0.0
    for i in range(KILLS + 1):
        file = tmp_path / "model.bin"
        data = chance.randbytes(12 * MIB)
        file.write_bytes(data)
        name = f"admin/m-{i}"
        hashes[name] = sha256(data).hexdigest()
        with served_hub(data_dir, token=token, arguments=("--port", port)) as hub:
            token = hub.admin_token
            sender = Machine(environments[NEWEST], tmp_path / f"home-{i % 2}", hub.url, token)
            begun = time.monotonic()
            process = sender.start(SEND, name=name, file=file)
            if i == 0:
                assert process.wait(TIMEOUT_S) == 0
                upload_s = time.monotonic() - begun
                continue
            # The first part goes by with imports.
            time.sleep(chance.uniform(0.35, 1) * upload_s)
            hub.kill_all()
        with Registry.open(Settings(data_dir=data_dir)) as reg:
            assert list(fsck(reg, read_data=True)) == []
        with served_hub(data_dir, token=token, arguments=("--port", port)) as hub:
            # Clients try by themselves for a while; who has given up is started again.
            if process.wait(TIMEOUT_S) != 0:
                sender.run(SEND, name=name, file=file)
            answer = hub.call("GET", f"/{name}/resolve/main/model.bin", token=token)
            assert sha256(answer.body).hexdigest() == hashes[name]
    with served_hub(data_dir, token=token) as hub:
        for name, digest in hashes.items():
            answer = hub.call("GET", f"/{name}/resolve/main/model.bin", token=token)
            assert sha256(answer.body).hexdigest() == digest
    with Registry.open(Settings(data_dir=data_dir)) as reg:
        assert list(fsck(reg, read_data=True)) == []


SEND_ONE = """
from huggingface_hub import HfApi
HfApi().create_repo(name, exist_ok=True, private=True)
result = HfApi().upload_file(repo_id=name, path_or_fileobj=file, path_in_repo="model.bin").oid
"""


def sent(world: World, machine: Machine, name: str, file: Path) -> int:
    """Bytes that the hub receives of an upload."""

    def received() -> int:
        answer = world.hub.call("GET", "/v1/metrics", token=world.hub.admin_token)
        return int(answer.json()["received_bytes"])

    before = received()
    machine.run(SEND_ONE, name=name, file=file)
    return received() - before


@pytest.mark.parametrize("machine", ["hub-1.26", NEWEST], indirect=True)
def test_a_computer_that_sent_nothing_yet_sends_only_what_changed(
    machine: Machine, world: World, name: str, tmp_path: Path
) -> None:
    data = bytearray(random.Random(name).randbytes(24 * MIB))
    file = tmp_path / "model.bin"
    file.write_bytes(data)
    assert sent(world, machine, name, file) > len(data)
    data[12 * MIB : 13 * MIB] = random.Random(name + "!").randbytes(MIB)
    file.write_bytes(data)
    # Noise does not compress: this is the MiB that is new and what lies around it in chunks.
    assert MIB < sent(world, machine.another(), name, file) < 3 * MIB
    assert world.hashes(name)["model.bin"] == sha256(data).hexdigest()
    # What another may not read, he sends whole.
    of_bob = machine.another(token=world.bob)
    assert sent(world, of_bob, name.replace("alice", "bob"), file) > len(data)

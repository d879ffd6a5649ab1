"""A hub without room says so at once, and clients do not repeat the upload for minutes."""

import random
import time
from pathlib import Path

import pytest

from clients.conftest import UPLOADERS
from clients.environments import NEWEST, Environment
from clients.machine import Machine
from support.service.hub import running_hub
from support.stores.small_disk import SmallDisk

SEND = """
from huggingface_hub import HfApi
HfApi().upload_file(repo_id="admin/m", path_or_fileobj=file, path_in_repo="model.bin")
"""
# Clients that repeat a request take 100 s and more.
AT_ONCE_S = 40


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(random.Random(9).randbytes(3_000_000))
    return path


@pytest.mark.parametrize("uploader", UPLOADERS)
def test_an_upload_without_room_ends_at_once_with_the_hubs_sentence(
    environments: dict[str, Environment], uploader: str, file: Path, tmp_path: Path
) -> None:
    client, _, way = uploader.partition("-by-")
    settings = {"HF_HUB_DISABLE_XET": "1"} if way else {}
    with running_hub(tmp_path / "data", disk=SmallDisk(room=2_000_000)) as hub:
        hub.create("admin/m")
        machine = Machine(
            environments[client], tmp_path / "home", hub.url, hub.admin_token, settings
        )
        start = time.monotonic()
        refused = machine.refused(SEND, file=file)
        assert time.monotonic() - start < AT_ONCE_S
    assert "507" in refused.text
    assert "disk is full: it has room for 2.0 MB, and this upload has 3.0 MB" in refused.text


@pytest.mark.parametrize("client", ["hub-1.26", NEWEST])
def test_a_disk_that_gets_full_while_xorbs_come_ends_the_upload_at_once(
    environments: dict[str, Environment], client: str, file: Path, tmp_path: Path
) -> None:
    disk = SmallDisk(room=2_000_000, free=1 << 40)
    with running_hub(tmp_path / "data", disk=disk) as hub:
        hub.create("admin/m")
        machine = Machine(environments[client], tmp_path / "home", hub.url, hub.admin_token)
        start = time.monotonic()
        refused = machine.refused(SEND, file=file)
        assert time.monotonic() - start < AT_ONCE_S
        assert "413" in refused.text
        assert "/v1/xorbs/default/" in refused.text
        # Once there is room, the same command succeeds.
        disk.room = 1 << 40
        machine.run(SEND, file=file)
        sent = hub.call("GET", "/admin/m/resolve/main/model.bin", token=hub.admin_token)
        assert sent.body == file.read_bytes()


def test_a_disk_that_gets_full_while_the_file_is_built_ends_with_the_hubs_sentence(
    environments: dict[str, Environment], file: Path, tmp_path: Path
) -> None:
    disk = SmallDisk(room=4_000_000)
    with running_hub(tmp_path / "data", disk=disk) as hub:
        hub.create("admin/m")
        machine = Machine(environments[NEWEST], tmp_path / "home", hub.url, hub.admin_token)
        start = time.monotonic()
        refused = machine.refused(SEND, file=file)
        assert time.monotonic() - start < AT_ONCE_S
    assert "the hub's disk is full" in refused.text

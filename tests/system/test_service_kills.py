"""The whole service, server and worker, killed again and again while a client pushes.

DELTAHUB_KILLS raises the number here too, to a sixteenth of it: each is the start of a hub.
"""

import hashlib
import os
import random
import threading
import time
from pathlib import Path

import pytest
import torch

from deltahub.client import Hub
from deltahub.client.errors import HubError
from deltahub.registry.jobs.queue import next_queued, running
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from support.models import tiny_models
from support.service.hub import ServedHub, served_hub

KILLS = int(os.environ.get("DELTAHUB_KILLS", "100")) // 16
TIMEOUT_S = 90


def push_until_the_hub_dies(hub: ServedHub, folders: list[Path], done: list[Path]) -> None:
    """Push what is not acknowledged yet, one after the other."""
    with Hub(hub.url, hub.admin_token, patience_s=0.5) as sdk:
        for folder in [folder for folder in folders if folder not in done]:
            base = None if folder.name.startswith("base") else f"admin/base-{folder.name[-1]}"
            try:
                sdk.push(folder, f"admin/{folder.name}", base=base)
            except HubError:
                return
            done.append(folder)


def wait_for_all_jobs(data_dir: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    with Registry.open(Settings(data_dir=data_dir)) as reg:
        while True:
            with reg.db.read() as session:
                if not running(session) and not next_queued(session):
                    return
            assert time.monotonic() < deadline, "jobs do not come to an end"
            time.sleep(0.1)


@pytest.mark.long
def test_a_service_killed_in_mid_work_keeps_every_acknowledged_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTAHUB_CACHE", str(tmp_path / "cache"))
    folders = []
    for i in range(4):
        kinds = {"base": tiny_models.base(i), "tune": tiny_models.finetune(1e-5, i)}
        for kind, tensors in kinds.items():
            folders.append(tmp_path / f"{kind}-{i}")
            folders[-1].mkdir()
            data = tiny_models.to_file(tiny_models.cast(tensors, torch.bfloat16))
            (folders[-1] / "model.safetensors").write_bytes(data)
    chance = random.Random(3)
    data_dir, token = tmp_path / "data", ""
    acknowledged: list[Path] = []
    for _ in range(KILLS):
        with served_hub(data_dir, token=token) as hub:
            token = hub.admin_token
            if len(acknowledged) == len(folders):
                # Everything is in: go on with new contents, so that there is work to be killed in.
                for folder in folders:
                    (folder / f"{len(list(folder.iterdir()))}.txt").write_text(str(time.time()))
                acknowledged.clear()
            work = threading.Thread(
                target=push_until_the_hub_dies, args=(hub, folders, acknowledged)
            )
            work.start()
            work.join(chance.uniform(0.2, 4))
            hub.kill_all()
            work.join()
    with served_hub(data_dir, token=token) as hub:
        push_until_the_hub_dies(hub, folders, acknowledged)
        assert len(acknowledged) == len(folders)
        wait_for_all_jobs(data_dir)
        for folder in folders:
            for file in folder.iterdir():
                answer = hub.call(
                    "GET", f"/v1/repositories/admin/{folder.name}/files/{file.name}", token=token
                )
                expected = hashlib.sha256(file.read_bytes()).hexdigest()
                assert hashlib.sha256(answer.body).hexdigest() == expected
    with Registry.open(Settings(data_dir=data_dir)) as reg:
        assert list(fsck(reg, read_data=True)) == []

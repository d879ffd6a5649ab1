"""docker-compose.scale.yml by processes: pushed, merged, killed part by part, and proved."""

import json
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from support.containers.scaled_hub import WORKERS, ScaledHub, scaled_hub, wait_for
from support.models.model_folders import base_tensors, tuned_tensors, write_model
from support.service.metrics import scrape


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ScaledHub]:
    found = scaled_hub(tmp_path)
    for name in ("s3.env", "hub.env", "postgres.env", "metrics.token"):
        assert (tmp_path / "folder" / name).stat().st_mode & 0o077 == 0
    try:
        found.up()
        yield found
    finally:
        found.down()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A base, three fine-tunes, and a file that takes a while to send."""
    folder = tmp_path / "models"
    write_model(folder / "base", base_tensors())
    for number, rate in enumerate((1e-4, 2e-4, 3e-4)):
        write_model(folder / f"tune{number}", tuned_tensors(rate))
    (folder / "large").mkdir()
    (folder / "large" / "data.bin").write_bytes(Random(1).randbytes(96 << 20))
    return folder


def test_what_was_acknowledged_survives_the_death_of_each_part(
    hub: ScaledHub, models: Path
) -> None:
    hub.run("push", "base", "admin/base", cwd=models)
    for number in range(3):
        hub.run("push", f"tune{number}", f"admin/tune{number}", "--base", "admin/base", cwd=models)

    # A server dies during a push; the balancer and the client go on with the other one.
    push = hub.run("push", "large", "admin/large", cwd=models, must=False)
    time.sleep(3)
    hub.kill("hub-1")
    push.communicate(timeout=300)
    hub.run("push", "large", "admin/large", cwd=models)
    hub.start("hub-1")
    hub.wait_until_ready("hub-1")

    # A worker dies during a merge, and the database with it.
    tunes = [f"admin/tune{number}" for number in range(3)]
    merge = hub.run(
        "merge", "emr", "--base", "admin/base", *tunes, "--name", "admin/merged", cwd=models,
        must=False,
    )  # fmt: skip
    wait_for_merge(hub, models, "running")
    hub.kill("worker")
    hub.database.kill()
    hub.database.start()
    merge.communicate(timeout=300)  # the client may have given up while the database was away
    wait_for_merge(hub, models, "done")
    hub.run("pull", "admin/merged@tune0", "--to", "merged", cwd=models)
    hub.start("worker")
    for name in WORKERS:
        worker = hub.metrics_of(name)
        wait_for(f"{worker.url}/healthz", hub.log(name))
        assert "deltahub_job_duration_seconds_count" in scrape(worker).names
        assert worker.call("GET", "/metrics").status == 401

    # The store dies during a push.
    (models / "large" / "more.bin").write_bytes(Random(2).randbytes(48 << 20))
    push = hub.run("push", "large", "admin/large", cwd=models, must=False)
    time.sleep(2)
    hub.store.kill()
    hub.store.start()
    push.communicate(timeout=300)
    hub.run("push", "large", "admin/large", cwd=models)

    # A server that is stopped in order leaves the other one to answer.
    assert hub.stop("hub-2") == 0, hub.tails()
    for name in ("base", "tune0", "tune1", "tune2", "large"):
        prove(hub, models, name)
    assert "clean" in hub.operate("fsck", "--read-data")


def wait_for_merge(hub: ScaledHub, models: Path, state: str) -> None:
    """Until the merge that was asked for is in this state, or past it."""
    deadline = time.monotonic() + 180
    while True:
        listing = hub.run("jobs", "ls", "--json", cwd=models, must=False)
        said, _ = listing.communicate(timeout=60)
        if listing.returncode == 0:
            merges = [job for job in json.loads(said)["items"] if job["kind"] == "merge"]
            states = [job["state"] for job in merges]
            assert "failed" not in states, ([job["error"] for job in merges], hub.tails())
            if state in states or "done" in states:
                return
        assert time.monotonic() < deadline, (said, hub.tails())
        time.sleep(0.5)


def prove(hub: ScaledHub, models: Path, name: str) -> None:
    """Pull into an empty folder with an empty cache, and compare the SHA-256 of every file."""
    target = f"pulled-{name}-{time.monotonic_ns()}"
    hub.run("pull", f"admin/{name}", "--to", target, "--sha256", cwd=models)
    assert digests(models / name) == digests(models / target)


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".")
    }

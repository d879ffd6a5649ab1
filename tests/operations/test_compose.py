"""docker-compose.yml, from its own environment and commands: pushed, killed, pulled, proved."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from support.containers import compose
from support.containers.dockerfile import Image
from support.containers.recipes import recipe
from support.containers.running import Composition
from support.containers.sandbox import Machine, base_image
from support.models.model_folders import base_tensors, tuned_tensors, write_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def composition(
    image: Image, containers: Machine, weed: Path, tmp_path: Path
) -> Iterator[Composition]:
    place = tmp_path / "place"
    place.mkdir()
    file = place / "docker-compose.yml"
    file.write_text((ROOT / file.name).read_text())
    subprocess.run(["sh", "-euc", recipe("credentials")], cwd=place, check=True)
    assert (place / "s3.env").stat().st_mode & 0o077 == 0
    other = tmp_path / "other"
    other.mkdir()
    base_image(other, {"weed": weed})
    found = Composition(containers, compose.read(file, {}), image, other, tmp_path)
    try:
        yield found
    finally:
        found.down()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A base, its fine-tune, and two files that take a while to send."""
    folder = tmp_path / "models"
    write_model(folder / "base", base_tensors())
    write_model(folder / "tune", tuned_tensors())
    for name in ("large", "another"):
        (folder / name).mkdir()
        (folder / name / "data.bin").write_bytes(Random(name).randbytes(96 << 20))
    return folder


def test_what_was_acknowledged_survives_the_death_of_each_service(
    composition: Composition, containers: Machine, models: Path
) -> None:
    up = composition
    assert not up.is_healthy("seaweedfs")
    assert not up.is_healthy("hub")
    up.up()
    up.wait_until_healthy("hub")
    token = up.token()

    up.must("push", "base", "admin/base", models=models, token=token)
    # The hub dies while a push is under way, and its worker with it.
    push = up.client("push", "large", "admin/large", models=models, token=token)
    up.wait_for_half_an_upload()
    up.running["hub"].kill()
    assert push.process.poll() is None, "the push was over before the hub died"
    assert not up.is_healthy("hub")
    up.start("hub")
    up.wait_until_healthy("hub")
    push.process.wait(180)
    up.must("push", "large", "admin/large", models=models, token=token)
    prove(up, models, ["base", "large"], token)

    # The store dies while a push is under way. The hub answers on, and goes on when it is back.
    push = up.client("push", "another", "admin/another", models=models, token=token)
    up.wait_for_half_an_upload()
    up.running["seaweedfs"].kill()
    assert push.process.poll() is None, "the push was over before the store died"
    assert not up.is_healthy("seaweedfs")
    assert up.is_healthy("hub"), "the hub answers without its store"
    fail_as_without_power(up.folder / "volumes" / "objects")
    fixing = [*up.services["seaweedfs"].values["entrypoint"], "fix", "/data"]
    fixed = containers.run(up.container("seaweedfs"), fixing)
    assert fixed.returncode == 0, fixed.stderr
    up.start("seaweedfs")
    up.wait_until_healthy("seaweedfs")
    push.process.wait(180)
    up.must("push", "another", "admin/another", models=models, token=token)
    up.must("push", "tune", "admin/tune", "--base", "admin/base", models=models, token=token)
    prove(up, models, ["base", "large", "another", "tune"], token)

    for name in ("hub", "seaweedfs"):
        service = up.services[name]
        number = getattr(signal, up.image.stop_signal)
        status = up.running[name].stop(number, service.stop_grace_s)
        assert status == 0, up.log(name).read_text()[-2000:]
    assert not up.is_healthy("hub")

    objects = up.folder / "volumes" / "hub" / "objects"
    assert [path for path in objects.rglob("*") if path.is_file()] == []

    # Everything starts once more on its volumes; `bucket` finds what it made the first time.
    up.up()
    up.wait_until_healthy("hub")
    prove(up, models, ["base", "large", "another", "tune"], token)


def fail_as_without_power(volumes: Path) -> None:
    """Take the newest entry from the index of each volume, which SeaweedFS does not fsync."""
    entry = 17
    indexes = [path for path in volumes.glob("*.idx") if path.stat().st_size]
    assert indexes
    for path in indexes:
        os.truncate(path, path.stat().st_size - entry)


def prove(up: Composition, models: Path, names: list[str], token: str) -> None:
    """Pull into empty folders with an empty cache, and compare the SHA-256 of every file."""
    for name in names:
        target = f"pulled-{name}-{time.monotonic_ns()}"
        up.must("pull", f"admin/{name}", "--to", target, "--sha256", models=models, token=token)
        assert digests(models / name) == digests(models / target)


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".")
    }

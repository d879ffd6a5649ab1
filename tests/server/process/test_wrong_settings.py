"""An environment variable with a wrong value: one line that names it, and status 2."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import forked


def run(tmp_path: Path, variable: str, *command: str) -> subprocess.CompletedProcess[str]:
    name, _, value = variable.partition("=")
    environment = {"DELTAHUB_DATA_DIR": str(tmp_path / "data"), name: value}
    words = ("-m", "deltahub.client.cli.main", *command)
    if name != "DELTAHUB_KERNELS":
        return forked.run(*words, environment=environment)
    return subprocess.run(  # the native code reads it when it is imported
        [sys.executable, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("variable", "command", "says"),
    [
        ("DELTAHUB_PORT=abc", ("gc",), "integer"),
        ("DELTAHUB_CODEC_EFFORT=bogus", ("recompress",), "'max'"),
        ("DELTAHUB_SERVER_DECODE_THREADS=0", ("serve", "--port", "0"), "greater"),
        ("DELTAHUB_WORKER_CONCURRENCY=0", ("serve", "--port", "0"), "greater"),
        ("DELTAHUB_KERNELS=sse", ("recompress",), "portable"),
        ("DELTAHUB_KERNELS=sse", ("pull", "a/b"), "portable"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_wrong_setting_is_named(
    tmp_path: Path, variable: str, command: tuple[str, ...], says: str
) -> None:
    done = run(tmp_path, variable, *command)
    assert done.returncode == 2
    assert f"{variable}: " in done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variable", "shown"),
    [
        ("DELTAHUB_SERVER_PUBLIC_URL=https://u:s3cret@hub.example", "=https://***@hub.example: "),
        ("DELTAHUB_DATABASE_URL=postgresql://u:s3cret@db:x/hub", "=postgresql://***@db:x/hub: "),
        ("DELTAHUB_DATABASE_URL=oracel://u:s3cret@db/hub", "=oracel://***@db/hub: "),
        ("DELTAHUB_DATABASE_URL=hub.sqlite3", "=hub.sqlite3: "),
        ("DELTAHUB_PORT=1\n2", "='1\\n2': "),
    ],
    ids=lambda value: value.partition("=")[0],
)
def test_what_is_said_is_one_line_without_passwords(
    tmp_path: Path, variable: str, shown: str
) -> None:
    done = run(tmp_path, variable, "serve", "--port", "0")
    assert done.returncode == 2
    name = variable.partition("=")[0]
    assert any(f"{name}{shown}" in line for line in done.stderr.splitlines())
    assert "s3cret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_refuses_kernels_that_there_are_not(tmp_path: Path) -> None:
    done = run(tmp_path, "DELTAHUB_KERNELS=sse", "worker")
    assert done.returncode == 2
    assert "portable" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_reads_it_as_an_object(tmp_path: Path) -> None:
    done = run(tmp_path, "DELTAHUB_HOLD_TTL_S=a day", "gc", "--json")
    assert done.returncode == 2
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "wrong_setting"
    assert error["message"].startswith("DELTAHUB_HOLD_TTL_S=a day: ")

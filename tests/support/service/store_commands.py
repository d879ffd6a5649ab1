"""Runs commands of the hub on a data folder, in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

COMMAND = [sys.executable, "-c", "from deltahub.client.cli.main import main; main()"]
TIMEOUT_S = 120


def run_command(
    data_dir: Path, *arguments: str, environment: Mapping[str, str], failpoint: str = ""
) -> subprocess.CompletedProcess[str]:
    """The ended process of `deltahub ARGUMENTS --data-dir DATA_DIR`."""
    env = {**os.environ, **environment}
    if failpoint:
        env["DELTAHUB_FAILPOINT"] = failpoint
    return subprocess.run(
        [*COMMAND, *arguments, "--data-dir", str(data_dir)],
        env=env, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip


def output_of(data_dir: Path, *arguments: str, environment: Mapping[str, str]) -> str:
    """What a command prints that has to succeed."""
    done = run_command(data_dir, *arguments, environment=environment)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout

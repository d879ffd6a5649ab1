"""Runs the `deltahub` command in a process of its own, to its end or until it is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

COMMAND = (sys.executable, "-m", "deltahub.client.cli.main")


@dataclass(frozen=True)
class Finished:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def error(self) -> dict[str, str]:
        """The JSON error that a refused command writes to stderr."""
        found: dict[str, str] = json.loads(self.err)["error"]
        return found


def deltahub(
    *arguments: str, environment: Mapping[str, str] | None = None, given: str = ""
) -> Finished:
    """Run the command to its end. environment: added to this process's. given: its input."""
    run = subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **(environment or {})},
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Finished(run.returncode, run.stdout, run.stderr)


def kill_when(
    condition: Callable[[], bool],
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    with_signal: int = signal.SIGKILL,
) -> Finished:
    """Start the command, and kill it as soon as the condition holds."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    deadline = time.monotonic() + 60
    try:
        while not condition():
            assert process.poll() is None, f"it ended by itself: {process.stderr.read()}"
            assert time.monotonic() < deadline, "what should be interrupted did not begin"
            time.sleep(0.005)
        process.send_signal(with_signal)
        out, err = process.communicate(timeout=60)
        return Finished(process.returncode, out, err)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()

"""Our processes code one frame a core: linear algebra must not take all cores for each."""

import subprocess
import sys

import pytest

PROBE = """
import os, sys
{start}
import numpy as np
square = np.ones((600, 600))
square @ square
print(len(os.listdir("/proc/self/task")))
"""
START = """
try:
    {command}
except SystemExit:
    pass
"""


@pytest.mark.parametrize(
    "command",
    [
        "from deltahub.client.cli.main import main; main(['ls', '--no-such-option'])",
        "from deltahub.workers.commands import worker; worker(['--data-dir', '/proc/none'])",
    ],
)
def test_a_process_of_ours_has_one_thread_for_linear_algebra(command: str) -> None:
    start = START.format(command=command)
    run = subprocess.run(
        [sys.executable, "-c", PROBE.format(start=start)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout == "1\n"

"""The list of failpoints is complete, and each kills the process at its place."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deltahub.registry import failpoints

ROOT = Path(__file__).parents[2]
ALONE = "import runpy, sys; reached = runpy.run_path(sys.argv[1])['reached']"
CALL = re.compile(r"""\breached\(\s*["']([^"']+)["']\s*\)""")


def test_the_list_names_every_failpoint_of_the_tree_once() -> None:
    in_tree = set()
    for folder in ("registry", "workers", "server", "client"):
        for path in (ROOT / folder).rglob("*.py"):
            in_tree |= set(CALL.findall(path.read_text()))
    assert sorted(failpoints.ALL) == sorted(in_tree)


def run(code: str, failpoint: str) -> int:
    # As a script: the package imports all of the registry, which takes a second.
    command = [sys.executable, "-c", f"{ALONE}\n{code}", failpoints.__file__]
    return subprocess.run(
        command, env={**os.environ, "DELTAHUB_FAILPOINT": failpoint}, stderr=subprocess.DEVNULL
    ).returncode


@pytest.mark.parametrize(
    ("failpoint", "times", "code"),
    [
        ("store.put.after_fsync", 1, -9),
        ("store.put.before_fsync", 1, 0),
        ("store.put.after_fsync:3", 2, 0),
        ("store.put.after_fsync:3", 3, -9),
        ("no.such.place", 0, 1),
    ],
)
def test_a_failpoint_kills_when_it_is_reached_so_often(
    failpoint: str, times: int, code: int
) -> None:
    assert run(f"for _ in range({times}): reached('store.put.after_fsync')", failpoint) == code

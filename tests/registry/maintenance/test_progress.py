"""What long commands print on the error stream while they work."""

import os
import pty
from typing import BinaryIO

import pytest

from deltahub.registry.commands.progress import CountLine

SECONDS = 100


def shown(line: CountLine) -> None:
    for n in range(SECONDS):
        line(f"{n} objects copied")
    line("the hub uses the bucket now", is_step=True)
    for _ in range(SECONDS):
        line("waiting for readers", is_step=True)
    line.end()


def test_a_log_gets_each_step_once_and_a_count_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown(CountLine())
    assert capsys.readouterr().err.splitlines() == [
        "0 objects copied", "the hub uses the bucket now", "waiting for readers",
    ]  # fmt: skip


def lines_of(screen: BinaryIO) -> bytes:
    """What a terminal has for its reader next; nothing once its writer is gone (EIO)."""
    try:
        return screen.read(65536)
    except OSError:
        return b""


def test_a_terminal_shows_a_count_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        shown(CountLine())
    with os.fdopen(master, "rb", buffering=0) as screen:
        told = b"".join(iter(lambda: lines_of(screen), b"")).decode()
    assert told == (
        "\r\033[K0 objects copied\r\033[Kthe hub uses the bucket now\r\nwaiting for readers\r\n"
    )

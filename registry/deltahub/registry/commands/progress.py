"""Shows on stderr how far a long command is."""

import sys
import time
from typing import Final

import click

from deltahub.registry.sizes import human_size

# Seconds between changes of the line on a terminal.
_UPDATE_S: Final = 0.2


class StageLine:
    """One changing line on a terminal; elsewhere a line for each stage."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._stage = ""
        self._shown_at = 0.0
        self._is_terminal = sys.stderr.isatty()

    def show(self, stage: str, n_bytes: int) -> None:
        now = time.monotonic()
        is_due = self._is_terminal and now - self._shown_at >= _UPDATE_S
        if stage == self._stage and not is_due:
            return
        self._stage, self._shown_at = stage, now
        text = f"{self._verb} {stage}" + (f", {human_size(n_bytes)}" if n_bytes else "")
        click.echo(f"\r\033[K{text[:120]}" if self._is_terminal else text,
                   nl=not self._is_terminal, err=True)  # fmt: skip

    def end(self) -> None:
        if self._is_terminal and self._stage:
            click.echo("\r\033[K", nl=False, err=True)

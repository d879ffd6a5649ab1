"""Shows on stderr how far a long command is."""

import sys
import time
from typing import Final

import click

from deltahub.registry.sizes import human_size

# Seconds between changes of the line on a terminal, and between lines of a count elsewhere.
_UPDATE_S: Final = 0.2
_INTERVAL_S: Final = 60.0


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


class CountLine:
    """Lines for steps, and a count between them: on a terminal one changing line, elsewhere at most
    one line a minute.
    """

    def __init__(self) -> None:
        self._step = ""
        self._is_terminal = sys.stderr.isatty()
        self._due_at = time.monotonic()
        self._is_shown = False

    def __call__(self, text: str, *, is_step: bool = False) -> None:
        """is_step: print this text now, but only once if it comes again and again."""
        if is_step:
            if text != self._step:
                self.end()
                click.echo(text, err=True)
                self._step = text
            return
        now = time.monotonic()
        if now < self._due_at:
            return
        self._due_at = now + (_UPDATE_S if self._is_terminal else _INTERVAL_S)
        self._is_shown = self._is_terminal
        click.echo(f"\r\033[K{text[:120]}" if self._is_terminal else text,
                   nl=not self._is_terminal, err=True)  # fmt: skip

    def end(self) -> None:
        if self._is_shown:
            click.echo("\r\033[K", nl=False, err=True)
            self._is_shown = False

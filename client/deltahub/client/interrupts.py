"""Ctrl-C while a command is still being imported ends with one line and an exit status."""

import os
import signal
import sys

EXIT_INTERRUPTED = 130


class _Stop:
    """A signal handler that prints a line and ends the process.

    It raises no exception, because a module that is being imported may replace or lose one.
    """

    def __init__(self, line: str) -> None:
        self._line = line

    def __call__(self, number: int, frame: object) -> None:
        print(self._line, file=sys.stderr, flush=True)
        os._exit(EXIT_INTERRUPTED)


def end_on_interrupt(*, is_json: bool) -> None:
    """Ctrl-C ends the process from now on until `raise_on_interrupt`.

    Ctrl-C stays ignored where it already is, as in a shell's background job.
    """
    line = "deltahub: interrupted"
    if is_json:
        line = '{"error": {"code": "interrupted", "message": "interrupted"}}'
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Stop(line))


def raise_on_interrupt() -> None:
    """Ctrl-C raises KeyboardInterrupt again."""
    if isinstance(signal.getsignal(signal.SIGINT), _Stop):
        signal.signal(signal.SIGINT, signal.default_int_handler)

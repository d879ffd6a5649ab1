"""Ctrl-C before a command has begun: one line and an exit status, whatever is half loaded."""

import os
import signal
import sys

EXIT_INTERRUPTED = 130


class _Stop:
    """A signal handler that ends the process.

    An exception would not do: modules that are being loaded make other errors of it, or lose it.
    """

    def __init__(self, line: str) -> None:
        self._line = line

    def __call__(self, number: int, frame: object) -> None:
        print(self._line, file=sys.stderr, flush=True)
        os._exit(EXIT_INTERRUPTED)


def end_on_interrupt(*, is_json: bool) -> None:
    """Ctrl-C ends the process from now on until `raise_on_interrupt`.

    Where it is ignored, as by what a script runs aside, it still is.
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

"""How long work tells how far it is, and learns that it should stop."""

import time
from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""report(stage, done bytes, total bytes): called often; may raise to stop the work."""

# Asking is a query; between two pieces of a file of small tensors it would cost more than they.
CHECK_INTERVAL_S = 0.1


class Progress:
    """Passes on every report, and asks a few times a second whether to go on."""

    def __init__(self, report: Report, check_cancel: Callable[[], None]) -> None:
        self._report = report
        self._check_cancel = check_cancel
        self._checked_at = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._checked_at >= CHECK_INTERVAL_S:
            self._checked_at = now
            self._check_cancel()
        self._report(stage, done, total)

"""Progress reports of long work, and the check whether the work was cancelled."""

import time
from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""report(stage, done bytes, total bytes): called often; may raise an error to stop the work."""

# The check is a database query. After each tensor of a file of small tensors it would cost more
# than the tensors do.
CHECK_INTERVAL_S = 0.1


class Progress:
    """Forwards every report, and calls check_cancel at most every CHECK_INTERVAL_S seconds."""

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

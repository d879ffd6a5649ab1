"""A caller that leaves while the registry works for it."""

from collections.abc import Callable
from contextvars import copy_context

from deltahub.registry import cancellation
from deltahub.registry.cancellation import Cancellation
from deltahub.registry.errors import Cancelled


class LeavesAfter(Cancellation):
    """A caller that is there for n_checks questions, and then has gone."""

    def __init__(self, n_checks: int) -> None:
        super().__init__()
        self._left = n_checks

    @property
    def is_cancelled(self) -> bool:
        self._left -= 1
        return self._left < 0


def ends_before_leaving(work: Callable[[], object], n_checks: int) -> bool:
    """Whether the work ended for a caller that leaves after n_checks questions."""

    def run() -> bool:
        cancellation.use(LeavesAfter(n_checks))
        try:
            work()
        except Cancelled:
            return False
        return True

    return copy_context().run(run)

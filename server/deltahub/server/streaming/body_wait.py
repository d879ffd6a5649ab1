"""The wait for a request's body, which ends early when other clients need the slot."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class BodyWait:
    """The holder of a slot (client_slots.SlotHolder) whose client is sending a body."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._scope: anyio.CancelScope | None = None
        self.is_cut = False

    @contextmanager
    def for_block(self, longest_s: float) -> Iterator[None]:
        """Within this context, the client sends a block. TimeoutError after longest_s, or if cut.

        For the event loop's thread.
        """
        try:
            with self.for_client(), anyio.fail_after(longest_s) as self._scope:
                if self.is_cut:
                    self._scope.deadline = -math.inf
                yield
        finally:
            self._scope = None

    @contextmanager
    def for_client(self) -> Iterator[None]:
        """Within this context, the hub waits for the client. Any thread, which asks for is_cut."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def waited_s(self) -> float:
        """Seconds since the hub began to wait for the present block; 0 while it does not."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def cut(self) -> None:
        """End the wait, this one or the next one. For the event loop's thread."""
        self.is_cut = True
        if self._scope is not None:
            self._scope.deadline = -math.inf

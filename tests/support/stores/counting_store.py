"""A store in memory that says what it was asked for, and can be away."""

import threading
import time

from deltahub.registry.storage.base import StoreUnavailable
from deltahub.registry.storage.memory import MemoryStore


class CountingStore(MemoryStore):
    """requests: (key, first byte, bytes) of each read, in order. Reads take delay_s each."""

    def __init__(self, delay_s: float = 0.0) -> None:
        super().__init__()
        self.requests: list[tuple[str, int, int]] = []
        self.is_away = False
        self.delay_s = delay_s
        self._counting = threading.Lock()

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        with self._counting:
            self.requests.append((key, start, out.nbytes))
        if self.is_away:
            raise StoreUnavailable(f"{key}: the store is away")
        time.sleep(self.delay_s)
        super().get_into(key, start, out)

    def size(self, key: str) -> int:
        if self.is_away:
            raise StoreUnavailable(f"{key}: the store is away")
        return super().size(key)

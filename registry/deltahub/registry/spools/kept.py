"""Hash states that a process keeps between the parts of uploads, so that it hashes them once."""

import threading
from collections import OrderedDict
from typing import Final

from deltahub.registry.storage.checksums import Hashes

# Others are computed again.
_MOST: Final = 256


class KeptHashes:
    """The last states, by a name that stands for the bytes. Safe to share between threads."""

    def __init__(self) -> None:
        self._states: OrderedDict[str, Hashes] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str) -> Hashes | None:
        with self._lock:
            return self._states.pop(name, None)

    def keep(self, name: str, hashes: Hashes) -> None:
        with self._lock:
            self._states[name] = hashes
            while len(self._states) > _MOST:
                self._states.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._states.clear()

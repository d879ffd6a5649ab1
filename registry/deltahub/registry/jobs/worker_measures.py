"""What a worker has counted, in a file of the data folder that a server on it shows.

So nobody has to reach another port, and a worker that the server starts again counts from zero, as
a process of its own would. A worker that is scraped itself, as on another machine, has no file.
"""

import logging
import os
import threading
from contextlib import suppress
from typing import Final

from deltahub.registry.measures import Numbers
from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)

FILE: Final = "worker.measures"
# What a worker counts in the seconds before it is killed is lost.
_INTERVAL_S: Final = 2.0
# A file of some thousand series; a longer one is none of ours.
_MAX_BYTES: Final = 4 << 20


class MeasuresFile:
    """Writes what this worker counts, from start() to the end of the process."""

    def __init__(self, reg: Registry) -> None:
        self._reg = reg
        self._path = reg.data_dir / FILE
        self._written: str | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="measures", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def write(self) -> None:
        """Write the numbers if they have changed. They need not survive a loss of power."""
        with self._lock:
            text = self._reg.measures.read().to_json()
            if text == self._written:
                return
            temporary = self._path.with_name(f"{FILE}.new")
            try:
                temporary.write_text(text)
                os.replace(temporary, self._path)
            except OSError as error:
                log.debug("%s cannot be written: %s", FILE, error)
                return
            self._written = text

    def forget(self) -> None:
        """Delete the file that an earlier worker wrote, so that no server shows it."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self.write()
            pause.wait(_INTERVAL_S)


def read_measures(reg: Registry) -> Numbers | None:
    """What the worker had counted some seconds ago; None if no worker ever ran here."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        with (reg.data_dir / FILE).open() as file:
            return Numbers.from_json(file.read(_MAX_BYTES))
    return None

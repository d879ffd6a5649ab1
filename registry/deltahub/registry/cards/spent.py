"""What one request has cost so far, so that it can end its page in time."""

from dataclasses import dataclass

# What opening a file counts as, however few of its bytes are read.
OPENED_BYTES = 4096


@dataclass
class Spent:
    """Bytes that were read from files, and entries that were looked at; nothing for cache hits."""

    max_bytes: int
    max_entries: int
    n_bytes: int = 0
    n_entries: int = 0

    @property
    def is_over(self) -> bool:
        return self.n_bytes > self.max_bytes or self.n_entries > self.max_entries

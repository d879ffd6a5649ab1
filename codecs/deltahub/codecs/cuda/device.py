"""What decoding needs of a device: memory, copies and launches."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Memory:
    """An allocation on a device, at a multiple of 16. `owner` frees it once nobody holds it."""

    address: int
    size: int
    owner: Any


@dataclass(frozen=True)
class Launch:
    """One call of a kernel. The arguments are addresses."""

    kernel: str
    n_groups: int
    n_threads: int
    shared_bytes: int
    arguments: tuple[int, ...]


class Device(Protocol):
    """A GPU, or what takes its place in tests.

    A stream is whatever the device's callers have: None for the current one.
    """

    array_type: tuple[int, int]  # DLPack's device type and number of the arrays on it
    n_processors: int
    shared_bytes: int  # of one processor

    def allocate(self, size: int) -> Memory: ...

    def upload(self, memory: Memory, data: Bytes) -> None:
        """Copies `data` to the begin of `memory`; done on return."""
        ...

    def upload_on(self, stream: object, memory: Memory, data: Bytes) -> None:
        """The same in the order of a stream; `data` may change after the return."""
        ...

    def download(self, stream: object, memory: Memory) -> Bytes:
        """The bytes of `memory` after all work of the stream, for which this waits."""
        ...

    def launch(self, stream: object, launch: Launch) -> None: ...

    def key_of(self, stream: object) -> int:
        """A number that tells streams apart."""
        ...

"""Peak memory and CPU time of processes and their children, sampled from /proc.

Memory is RssAnon + RssShmem: what a process needs for itself. Pages of files do not count: they
are the kernel's cache, and go when somebody needs the room.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 0.02
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Usage:
    """One role over a step: the largest sum over its processes, and their CPU time."""

    peak_bytes: int = 0
    cpu_s: float = 0.0


def memory_bytes(pid: int) -> int:
    """RssAnon + RssShmem of one process; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(
        1024 * int(line.split()[1])
        for line in text.splitlines()
        if line.startswith(("RssAnon:", "RssShmem:"))
    )


def cpu_s(pid: int) -> float:
    """User and system time of one process, without children; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def children(pid: int) -> list[int]:
    """Direct children of all threads of a process."""
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return found
    for task in tasks:
        try:
            text = Path(f"/proc/{pid}/task/{task}/children").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [int(word) for word in text.split()]
    return found


def tree(pid: int) -> Iterator[int]:
    """The process and all its descendants."""
    yield pid
    for child in children(pid):
        yield from tree(child)


def hub_roles(server: int) -> dict[str, list[int]]:
    """Processes of `server` and `worker`: the server's child that runs deltahub.workers."""
    workers: list[int] = []
    for child in children(server):
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"deltahub.workers" in command:
            workers += tree(child)
    return {"server": [p for p in tree(server) if p not in workers], "worker": workers}


class Sampler:
    """Samples the roles that `find` names until stopped. CPU time counts from the start on."""

    def __init__(self, find: Callable[[], dict[str, list[int]]]) -> None:
        self.usage: dict[str, Usage] = {}
        self._find = find
        self._is_stopping = threading.Event()
        self._cpu_start: dict[int, float] = {}
        self._cpu_last: dict[tuple[str, int], float] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Sampler":
        for processes in self._find().values():
            for pid in processes:
                self._cpu_start[pid] = cpu_s(pid)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping.set()
        self._thread.join()
        self._sample()
        for (role, pid), last_s in self._cpu_last.items():
            self.usage[role].cpu_s += last_s - self._cpu_start.get(pid, 0.0)

    def _run(self) -> None:
        while not self._is_stopping.wait(INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        for role, processes in self._find().items():
            usage = self.usage.setdefault(role, Usage())
            usage.peak_bytes = max(usage.peak_bytes, sum(memory_bytes(pid) for pid in processes))
            for pid in processes:
                used_s = cpu_s(pid)
                if used_s:
                    self._cpu_last[role, pid] = used_s


def wait_until(is_done: Callable[[], bool], timeout_s: float, pause_s: float = 0.1) -> bool:
    """Whether it became true in time."""
    end = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > end:
            return False
        time.sleep(pause_s)
    return True

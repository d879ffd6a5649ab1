"""Runs Python in forks of a process that has imported the service, as `python WORDS` would.

A fork starts in 30 ms, a new process in more than a second. It is for tests of what a process does
and of how it dies. How a command starts, and what it imports, only a new process shows.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

# What most forks would import.
IMPORTED = (
    "deltahub.client.cli.commands",
    "deltahub.registry.commands.backup",
    "deltahub.registry.commands.maintenance",
    "deltahub.registry.commands.scrub",
    "deltahub.registry.maintenance.restore.run",
    "deltahub.registry.reencode.withdraw",
    "deltahub.server.process.serve",
    "deltahub.workers.engine",
)
_NUMBER_BYTES = 8
_MOST_BYTES = 1 << 17


class Fork:
    """A process with the part of subprocess.Popen that tests need.

    words: those after `python`: "-c" and code, "-m" and a module, or a script; and its arguments.
    "-W" and a filter of warnings may stand before them.
    """

    def __init__(
        self,
        *words: object,
        environment: Mapping[str, str] | None = None,
        out: int = 1,
        err: int = 2,
    ) -> None:
        """environment: added to this process's."""
        self.returncode: int | None = None
        self._told, theirs = os.pipe()
        all_variables = {**os.environ, **(environment or {})}
        request = json.dumps([[str(word) for word in words], all_variables, os.getcwd()])
        try:
            socket.send_fds(_zygote(), [request.encode()], [theirs, out, err])
        finally:
            os.close(theirs)
        self.pid = self._read()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _end(self) -> None:
        self.returncode = self._read()
        os.close(self._told)

    def _read(self) -> int:
        data = os.read(self._told, _NUMBER_BYTES)
        assert len(data) == _NUMBER_BYTES, "the fork was not made"
        return int.from_bytes(data, "little", signed=True)


def run(
    *words: object, environment: Mapping[str, str] | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run to the end, as subprocess.run with its output captured."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        fork = Fork(*words, environment=environment, out=out.fileno(), err=err.fileno())
        try:
            status = fork.wait(timeout_s)
        finally:
            fork.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, status, out.read(), err.read())


@functools.cache
def _zygote() -> socket.socket:
    """The socket of the process that forks; it ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = str(Path(__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "support.forked", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        # Threads of linear algebra do not survive a fork.
        env={**os.environ, "PYTHONPATH": folder, "OPENBLAS_NUM_THREADS": "1"},
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()  # the forks share these pages as long as no collection writes to them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
        if not request:
            return
        # The keeper waits for the fork and tells its end.
        if os.fork() == 0:
            connection.close()
            _keep(request, fds)
            return
        for fd in fds:
            os.close(fd)


def _keep(request: bytes, fds: list[int]) -> None:
    told, out, err = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    words, environment, folder = json.loads(request)
    pid = os.fork()
    if pid == 0:
        os.close(told)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        _become(words)
        return
    os.write(told, pid.to_bytes(_NUMBER_BYTES, "little"))
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    os.write(told, code.to_bytes(_NUMBER_BYTES, "little", signed=True))
    os._exit(0)


def _become(words: list[str]) -> None:
    """Run what the words name. If it raises, SystemExit for example, the process ends by that."""
    from deltahub.registry import failpoints

    if name := os.environ.get("DELTAHUB_FAILPOINT"):
        failpoints._trigger = failpoints._Trigger(name)
    if words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        words = words[2:]
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()

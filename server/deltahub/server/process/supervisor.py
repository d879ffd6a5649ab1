"""Processes next to the one that a user started: a worker, or servers. Each is started again."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deltahub.registry.data_folder import EXIT_BUSY

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
# After a process has lived this long, the pause before its restart is short again.
_HEALTHY_S = 30.0
# Exit status of a process whose settings are wrong: a restart would fail the same way.
_EXIT_WRONG = 2
# Time between checks whether the worker still runs.
_POLL_S = 0.2


class Supervisor:
    """Keeps `python -m MODULE OPTIONS --with-parent` running until stop()."""

    def __init__(
        self,
        name: str,
        module: str,
        options: Sequence[str],
        *,
        restart_max_s: float,
        stop_grace_s: float,
        inherited: Sequence[int] = (),
    ) -> None:
        """name: for messages. inherited: file descriptors that the process gets."""
        self._name = name
        # -P: nothing is imported from the folder in which the hub was started.
        self._command = [sys.executable, "-P", "-m", module, *options, "--with-parent"]
        self._inherited = inherited
        self._restart_max_s = restart_max_s
        self._stop_grace_s = stop_grace_s
        self._is_stopping = threading.Event()
        self._on_refusal: Callable[[], None] = lambda: None
        self.is_refused = False  # whether a process exited because its settings are wrong
        self._process: subprocess.Popen[bytes] | None = None
        # Reentrant: a signal handler may call ask_to_stop() in a thread that holds the lock.
        self._lock = threading.RLock()
        # With PR_SET_PDEATHSIG the process dies with the *thread* that started it, so this thread
        # lives as long as the server.
        self._thread = threading.Thread(target=self._keep_running, name=name, daemon=True)

    @property
    def pid(self) -> int | None:
        """The process's id; None while none runs."""
        with self._lock:
            return None if self._process is None else self._process.pid

    def start(self, on_refusal: Callable[[], None] = lambda: None) -> None:
        """Start the process. on_refusal: called once if its settings are wrong; it prints why."""
        self._on_refusal = on_refusal
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Ask the process to end after its current work. Does not wait; safe in signal handlers."""
        self._is_stopping.set()
        with self._lock:
            if self._process is not None:
                self._process.terminate()

    def stop(self) -> None:
        """Ask the process to end, wait stop_grace_s for its current work, then kill it."""
        self.ask_to_stop()
        self._thread.join()

    def _keep_running(self) -> None:
        # Ctrl-C sends SIGINT to the whole process group. The process inherits this mask and ignores
        # it: it ends on our SIGTERM.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        pause_s = _FIRST_PAUSE_S
        while not self._is_stopping.is_set():
            began = time.monotonic()
            status = self._run_once()
            lived_s = time.monotonic() - began
            # A SIGTERM to the whole process group may end the process before our handler runs.
            if self._is_stopping.wait(_FIRST_PAUSE_S):
                return
            if status == _EXIT_WRONG:
                self.is_refused = True
                self._on_refusal()
                return
            pause_s = _FIRST_PAUSE_S if lived_s > _HEALTHY_S else pause_s
            if status == EXIT_BUSY:
                log.warning(
                    "another worker runs the jobs of this data folder look_again_in_s=%.1f", pause_s
                )
            else:
                log.error(
                    "%s ended status=%d after_s=%.1f restart_in_s=%.1f",
                    self._name, status, lived_s, pause_s - _FIRST_PAUSE_S,
                )  # fmt: skip
            self._is_stopping.wait(pause_s - _FIRST_PAUSE_S)
            pause_s = min(pause_s * 2, self._restart_max_s)

    def _run_once(self) -> int:
        # It ends when the pipe at its standard input closes; if we die, the kernel closes it.
        with self._lock:
            if self._is_stopping.is_set():
                return 0
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, env=os.environ, pass_fds=self._inherited
            )
            self._process = process
        try:
            while True:
                # Not wait(timeout): that polls twenty times a second.
                status = process.poll()
                if status is not None:
                    return status
                if self._is_stopping.wait(_POLL_S):
                    return self._wait_or_kill(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with self._lock:
                self._process = None

    def _wait_or_kill(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(timeout=self._stop_grace_s)
        except subprocess.TimeoutExpired:
            process.kill()  # the next worker repeats the interrupted step
            return process.wait()


def worker_supervisor(data_dir: Path, restart_max_s: float, stop_grace_s: float) -> Supervisor:
    """What keeps a worker running on a data folder."""
    return Supervisor(
        "worker",
        "deltahub.workers",
        # The server shows its counts. A setting DELTAHUB_WORKER_METRICS_ADDRESS is for workers that
        # run apart.
        ["--data-dir", str(data_dir), "--metrics", ""],
        restart_max_s=restart_max_s,
        stop_grace_s=stop_grace_s,
    )

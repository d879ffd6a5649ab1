"""The embedded worker: one process next to the server, started again when it dies."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from deltahub.registry.data_folder import EXIT_BUSY

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
# A worker that lived this long had started well: the next pause is short again.
_HEALTHY_S = 30.0
# Of a worker whose settings are wrong: another one would be no better.
_EXIT_WRONG = 2
# How often a worker is looked at.
_LOOK_S = 0.2


class WorkerSupervisor:
    """Keeps `python -m deltahub.workers` running on a data folder until stop()."""

    def __init__(self, data_dir: Path, restart_max_s: float, stop_grace_s: float) -> None:
        self._command = [
            sys.executable,
            "-m",
            "deltahub.workers",
            "--data-dir",
            str(data_dir),
            "--with-parent",
        ]
        self._restart_max_s = restart_max_s
        self._stop_grace_s = stop_grace_s
        self._is_stopping = threading.Event()
        self._on_refusal: Callable[[], None] = lambda: None
        self.is_refused = False  # by a worker that could not run with the settings that there are
        self._process: subprocess.Popen[bytes] | None = None
        # A signal handler may ask to stop while its own thread is here already.
        self._lock = threading.RLock()
        # The kernel ties the worker's life to the *thread* that starts it: this one lives as long
        # as the server does.
        self._thread = threading.Thread(target=self._keep_running, name="worker", daemon=True)

    @property
    def pid(self) -> int | None:
        """The worker's process id; None while none runs."""
        with self._lock:
            return None if self._process is None else self._process.pid

    def start(self, on_refusal: Callable[[], None] = lambda: None) -> None:
        """on_refusal: called where no worker can run, whatever is tried; it says why itself."""
        self._on_refusal = on_refusal
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Asks the worker to end after the step in hand. Does not wait; for signal handlers too."""
        self._is_stopping.set()
        with self._lock:
            if self._process is not None:
                self._process.terminate()

    def stop(self) -> None:
        """Asks the worker to end, waits for the step in hand, and then insists."""
        self.ask_to_stop()
        self._thread.join()

    def _keep_running(self) -> None:
        # Ctrl-C goes to the whole process group. The worker inherits this mask and is deaf to it:
        # it ends when we say so.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        pause_s = _FIRST_PAUSE_S
        while not self._is_stopping.is_set():
            began = time.monotonic()
            status = self._run_once()
            lived_s = time.monotonic() - began
            # A SIGTERM for the whole process group may reach the worker before it reaches us.
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
                    "worker ended status=%d after_s=%.1f restart_in_s=%.1f",
                    status, lived_s, pause_s - _FIRST_PAUSE_S,
                )  # fmt: skip
            self._is_stopping.wait(pause_s - _FIRST_PAUSE_S)
            pause_s = min(pause_s * 2, self._restart_max_s)

    def _run_once(self) -> int:
        # The pipe on its standard input closes with us, and the worker notices.
        with self._lock:
            if self._is_stopping.is_set():
                return 0
            process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=os.environ)
            self._process = process
        try:
            while True:
                # Not wait(timeout): that looks twenty times a second.
                status = process.poll()
                if status is not None:
                    return status
                if self._is_stopping.wait(_LOOK_S):
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
            process.kill()  # its jobs resume at the step in hand
            return process.wait()

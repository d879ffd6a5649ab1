"""Several server processes of one machine, which take connections from one listening socket."""

import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from threading import Event

from deltahub.server.process.serve import url_of
from deltahub.server.process.supervisor import Supervisor

# Open connections that wait for a server to take them.
_BACKLOG = 2048
_LOOK_S = 0.2


class ServerProcesses:
    """Keeps `n` servers running on a data folder until stop()."""

    def __init__(
        self,
        data_dir: Path,
        listener: socket.socket,
        n: int,
        *,
        restart_max_s: float,
        grace_s: int,
        access_log: bool = False,
        s3_listener: socket.socket | None = None,
    ) -> None:
        """grace_s: how long a server that stops lets transfers finish."""
        options = ["--data-dir", str(data_dir), "--listener", str(listener.fileno())]
        inherited = [listener]
        if s3_listener is not None:
            options += ["--s3-listener", str(s3_listener.fileno())]
            inherited.append(s3_listener)
        for each in inherited:
            each.listen(_BACKLOG)
        self._is_stopping = Event()
        options += ["--access-log"] if access_log else []
        self._servers = [
            Supervisor(
                f"server {number}",
                "deltahub.server",
                options,
                restart_max_s=restart_max_s,
                stop_grace_s=grace_s + 10,
                inherited=[each.fileno() for each in inherited],
            )
            for number in range(1, n + 1)
        ]
        self.is_refused = False  # the servers cannot run with these settings; they printed why

    def run_on(
        self,
        listener: socket.socket,
        on_ready: Callable[[str], None],
        _s3_listener: socket.socket | None = None,
    ) -> None:
        """Serve until stop(). Calls on_ready with the URL once a server answers."""
        for server in self._servers:
            server.start(on_refusal=self._refuse)
        url = url_of(listener)
        while not self._is_stopping.is_set() and not _answers(url):
            self._is_stopping.wait(_LOOK_S)
        if not self._is_stopping.is_set():
            on_ready(url)
        self._is_stopping.wait()
        for server in self._servers:
            server.ask_to_stop()
        for server in self._servers:
            server.stop()

    def stop(self) -> None:
        """Ask the servers to stop. Safe in signal handlers; does not wait."""
        self._is_stopping.set()

    def _refuse(self) -> None:
        self.is_refused = True
        self.stop()


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(f"{url}/v1/health/live", timeout=5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True

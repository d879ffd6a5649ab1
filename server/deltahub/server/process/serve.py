"""A uvicorn server on a socket that is already bound."""

import logging
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Final

import uvicorn

from deltahub.registry.errors import RegistryError
from deltahub.registry.packs.tensor_reader import RANGE_BYTES
from deltahub.registry.registry import Registry
from deltahub.registry.reports import history
from deltahub.registry.reports.history import HistoryWriter
from deltahub.server.app import create_app
from deltahub.server.connections.access_log import log_exchange
from deltahub.server.connections.addresses import Proxies, with_mapped
from deltahub.server.connections.exchanges import Exchanges
from deltahub.server.connections.limits import ConnectionLimits
from deltahub.server.hub import Hub
from deltahub.server.monitoring.metrics import Monitoring
from deltahub.server.monitoring.of_server import Watched
from deltahub.server.process.open_files import connections_within
from deltahub.server.settings import ServerSettings
from deltahub.server.streaming.metering import Traffic, metered_protocol

# Unsent bytes that the kernel buffers for each connection: as many as one decoded run. With a
# quarter of this, the thread of a download to a busy client sleeps about four times a run, which
# costs a tenth of its time. More bytes would be held for every slow client, and come in bursts.
UNSENT_BYTES: Final = RANGE_BYTES
# Ticks of 0.1 s between two times that a chore is done. Nothing fills the space that hot bases
# leave free in these 5 s.
_TICKS_PER_CHORE: Final = 50
_END_S: Final = 5.0
# Between two looks at whether this hour has a row of the history. A server begins with the half.
_HISTORY_S: Final = 60.0

log = logging.getLogger(__name__)


class _Chore:
    """Work that is done again and again, each time in a thread.

    A disk or a database that hangs must block neither requests nor the stop.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Do the work, unless it is still being done."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait for the end of the work, but not for long."""
        if self._thread is not None:
            self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            self._work()
        except RegistryError as error:
            log.warning("%s: %s", self._name, error)


class HubServer(uvicorn.Server):
    """Serves one registry. Stops gracefully on SIGTERM, SIGINT or stop()."""

    def __init__(
        self,
        registry: Registry,
        settings: ServerSettings,
        *,
        access_log: bool = False,
        on_signal: Callable[[], None] | None = None,
        has_worker: bool = False,
    ) -> None:
        """on_signal: called when a stop signal arrives, before the server waits for transfers.

        has_worker: a worker is started together with the server.
        """
        self._on_signal = on_signal
        self._registry = registry
        self.traffic = Traffic()
        proxies = Proxies(settings.trusted_proxies)
        total = connections_within(settings.max_connections)
        self._limits = ConnectionLimits(total, settings.connections_per_address, proxies)
        app = create_app(registry, settings, self.traffic)
        self._hub: Hub = app.state.hub
        self.monitoring: Monitoring = app.state.monitoring
        watchers = [self.monitoring.requests.add, *([log_exchange] if access_log else [])]
        exchanges = Exchanges(app, watchers)
        self.monitoring.watched = Watched(exchanges, self._limits)
        self._history = HistoryWriter(registry)
        self._history_due_at = time.monotonic() + _HISTORY_S / 2
        self._drain_s = settings.drain_s
        self._drained_at: float | None = None
        if has_worker:
            self._hub.health.expect_worker()
        self._chores = (
            _Chore("room", self._hub.leave_room),
            _Chore("lists", self._hub.update_lists),
            _Chore("codecs", self.monitoring.codecs.go_on),
            _Chore("history", self._note_history),
        )
        config = uvicorn.Config(
            exchanges,
            http=metered_protocol(self.traffic, self._limits, settings.idle_s),
            ws="none",
            loop="uvloop",
            lifespan="off",
            log_config=None,
            access_log=False,  # uvicorn's would hold signed links
            server_header=False,
            proxy_headers=True,
            forwarded_allow_ips=with_mapped(settings.trusted_proxies),
            timeout_keep_alive=settings.keep_alive_s,
            timeout_graceful_shutdown=settings.stop_grace_s,
        )
        super().__init__(config)
        self._on_ready: Callable[[str], None] = lambda url: None

    def run_on(
        self,
        listener: socket.socket,
        on_ready: Callable[[str], None],
        s3_listener: socket.socket | None = None,
    ) -> None:
        """Serve until stopped. Calls `on_ready` with the URL once requests are answered.

        s3_listener: what connects to it reads by S3.
        """
        self._on_ready = on_ready
        listeners = [listener]
        if s3_listener is not None:
            listeners.append(s3_listener)
            self._hub.s3_door.port = s3_listener.getsockname()[1]
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # not on Windows; connections inherit it
            for each in listeners:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._hub.health.start()
        try:
            self.run(sockets=listeners)
        finally:
            self._hub.health.stop()
            for chore in self._chores:
                chore.wait()
            # The last counts: nothing is served any more.
            last = _Chore("downloads", partial(self._hub.downloads.write, self._registry))
            last.start()
            last.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            self._on_ready(url_of(sockets[0]))

    async def on_tick(self, counter: int) -> bool:
        """Do chores every 5 s, and check idle connections. uvicorn calls this 10 times a second."""
        self._limits.end_idle_if_short()
        if counter % _TICKS_PER_CHORE == 0:
            for chore in self._chores:
                chore.start()
        if self._drained_at is not None and time.monotonic() >= self._drained_at:
            self.should_exit = True
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop on a signal, at its first one after the drain: /readyz sends clients elsewhere."""
        if self._on_signal is not None:
            self._on_signal()
        is_first = not self.monitoring.readiness.is_stopping
        self.monitoring.readiness.is_stopping = True
        if is_first and self._drain_s > 0:
            self._drained_at = time.monotonic() + self._drain_s
            log.info("the hub takes requests for another %g s, and then stops", self._drain_s)
        else:
            super().handle_exit(sig, frame)

    def _note_history(self) -> None:
        if time.monotonic() < self._history_due_at:
            return
        # If this fails, it is tried again in a minute.
        self._history_due_at = time.monotonic() + _HISTORY_S
        counted = self.traffic
        self._history.note(
            history.Traffic(counted.sent_bytes, counted.received_bytes, counted.requests)
        )

    def stop(self) -> None:
        """Ask the server to stop now. Safe from any thread; does not wait."""
        self.monitoring.readiness.is_stopping = True
        self.should_exit = True


def url_of(listener: socket.socket) -> str:
    """Return the URL at which this machine reaches a bound socket."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if listener.family == socket.AF_INET else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

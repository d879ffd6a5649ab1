"""The port at which Prometheus scrapes a worker, and a process manager asks whether it lives."""

import json
import logging
import socket
import threading
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from deltahub.registry.measures import Measures
from deltahub.registry.monitoring.access import has_secret
from deltahub.registry.monitoring.of_processes import process_families

log = logging.getLogger(__name__)

# Strangers who reach the port must not take the worker's memory: a scraper needs one connection.
_MOST_CONNECTIONS: Final = 16
# Longest wait for a client to send or take something.
_IDLE_S: Final = 10.0


class CannotListen(Exception):
    """The address cannot be bound: it is taken, or not one of this machine."""

    code = "cannot_listen"


class MetricsPort:
    """An address at which the worker listens. It answers from serve() to the end of the process."""

    def __init__(self, host: str, port: int, secret: str | None) -> None:
        """secret: the scraper's; None lets everybody read who reaches the port.

        CannotListen if the address cannot be had.
        """
        self._secret = secret
        self._listener = _listen(host, port)

    def serve(self, measures: Measures) -> None:
        """Answer GET /metrics and GET /healthz, in threads."""
        registry = CollectorRegistry()
        registry.register(_OfWorker(measures))
        ProcessCollector(registry=registry)
        server = _Server(self._listener)
        server.set_app(_App(registry, self._secret))
        host, port = self._listener.getsockname()[:2]
        address = _address(host, port)
        log.info("metrics are at http://%s/metrics", address)
        if self._secret is None and not ip_address(host).is_loopback:
            log.warning(
                "everybody who reaches %s may read the metrics of this worker: set "
                "DELTAHUB_SERVER_METRICS_TOKEN, or listen on 127.0.0.1", address,
            )  # fmt: skip
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_MOST_CONNECTIONS)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise CannotListen(
            f"cannot listen on {_address(host, port)} for the metrics: {reason}; choose another "
            "address with --metrics or DELTAHUB_WORKER_METRICS_ADDRESS (port 0 takes a free one)"
        ) from exc
    return listener


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _OfWorker(Collector):
    def __init__(self, measures: Measures) -> None:
        self._measures = measures

    def describe(self) -> Iterable[Metric]:
        """Nothing: the library would call collect() to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from process_families({"worker": self._measures.read()})


class _App:
    """The two paths, as a WSGI application."""

    def __init__(self, registry: CollectorRegistry, secret: str | None) -> None:
        self._metrics = make_wsgi_app(registry)
        self._secret = secret

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path not in ("/metrics", "/healthz"):
            message = "a worker has GET /metrics and GET /healthz alone"
            return _refuse(start_response, "404 Not Found", "not_found", message)
        if method != "GET":
            message = f"{path} takes GET alone"
            return _refuse(start_response, "405 Method Not Allowed", "method_not_allowed", message)
        if path == "/healthz":
            return _answer(start_response, "200 OK", {"status": "ok"})
        if self._secret is not None:
            if not has_secret(environ.get("HTTP_AUTHORIZATION", ""), self._secret):
                message = "the metrics need DELTAHUB_SERVER_METRICS_TOKEN as a bearer token"
                return _refuse(start_response, "401 Unauthorized", "unauthorized", message)
        shown: Iterable[bytes] = self._metrics(environ, start_response)
        return shown


def _refuse(start_response: StartResponse, status: str, code: str, message: str) -> Iterable[bytes]:
    return _answer(start_response, status, {"error": {"code": code, "message": message}})


def _answer(start_response: StartResponse, status: str, shown: dict[str, Any]) -> Iterable[bytes]:
    body = json.dumps(shown).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    if status.startswith("401"):
        headers.append(("WWW-Authenticate", "Bearer"))
    if status.startswith("405"):
        headers.append(("Allow", "GET"))
    start_response(status, headers)
    return [body]


class _Server(ThreadingWSGIServer):
    """The library's server on a socket that listens already, with few connections at once."""

    def __init__(self, listener: socket.socket) -> None:
        address = listener.getsockname()
        super().__init__(address, _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        # What binding would set, but for a look-up of the host's name, which may take seconds.
        self.server_name, self.server_port = address[:2]
        self.setup_environ()
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request for metrics failed", exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = _IDLE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: a scrape every few seconds would fill the log."""

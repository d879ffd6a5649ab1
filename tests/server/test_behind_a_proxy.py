"""Links have the scheme and host that the client used, also behind a proxy."""

import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from deltahub.registry.settings import WrongSetting
from deltahub.server.settings import ServerSettings
from support.service.hf_door import create_model, digest_of, header, large, send_commit, small
from support.service.hub import Answer, RunningHub, running_hub
from support.service.tls_proxy import NGINX, TlsProxy, tls_proxy

needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


def links(hub: RunningHub, name: str, headers: dict[str, str], proxy: TlsProxy | None) -> set[str]:
    """scheme://host of every link in the hub's answers."""
    agent = {"User-Agent": "unknown/None; hf_hub/2.4.0; python/3.11"}
    token = {"Authorization": f"Bearer {hub.admin_token}"}

    def call(method: str, path: str, body: Any = None) -> Answer:
        if proxy is None:
            connection = http.client.HTTPConnection(*hub.address, timeout=20)
        else:
            to = urlsplit(proxy.url).port
            connection = http.client.HTTPSConnection("localhost", to, context=proxy.trust)
        text = None if body is None else json.dumps(body)
        kind = {} if body is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, path, text, {**agent, **token, **kind, **headers})
            got = connection.getresponse()
            answer = Answer(got.status, got.headers, got.read())
        finally:
            connection.close()
        assert answer.status < 300 or answer.status == 409, (path, answer.body)
        return answer

    model = f"/api/models/{name}"
    sent = {"operation": "upload", "objects": [{"oid": "1" * 64, "size": 5}]}
    actions = call("POST", f"/{name}.git/info/lfs/objects/batch", sent).json()["objects"][0][
        "actions"
    ]
    urls = [actions["upload"]["href"], actions["verify"]["href"]]
    given = call("GET", f"{model}/xet-read-token/main")
    urls += [given.headers["X-Xet-Cas-Url"], given.json()["casUrl"]]
    head = call("HEAD", f"/{name}/resolve/main/w.bin")
    urls += [head.headers["Link"].strip("<").partition(">")[0]]
    pages = (f"{model}/commits/main?limit=1", "/api/models?limit=1&author=admin")
    urls += [call("GET", path).headers["Link"].strip("<").partition(">")[0] for path in pages]
    created = call("POST", "/api/repos/create", {"name": name.partition("/")[2]})
    urls += [created.json()["url"]]
    return {f"{urlsplit(url).scheme}://{urlsplit(url).netloc}" for url in urls}


def fill(hub: RunningHub) -> str:
    data = os.urandom(1000)
    for name in ("admin/links", "admin/another"):
        assert create_model(hub, name).status == 200
    put = hub.call("PUT", f"/v1/uploads/{digest_of(data)}", token=hub.admin_token, body=data)
    assert put.status == 201
    for line in (large("w.bin", data), small("b", b"b")):
        assert send_commit(hub, "admin/links", header(), line).status == 200
    return "admin/links"


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    settings = ServerSettings(stop_grace_s=2, trusted_proxies="127.0.0.1")
    with running_hub(tmp_path_factory.mktemp("behind") / "data", server_settings=settings) as hub:
        fill(hub)
        yield hub


NAME = "admin/links"


@needs_nginx
def test_links_lead_through_a_proxy_with_tls(behind: RunningHub, tmp_path: Path) -> None:
    with tls_proxy(behind.address, tmp_path / "nginx") as proxy:
        assert links(behind, NAME, {}, proxy) == {proxy.url}
    assert links(behind, NAME, {}, None) == {behind.url}


def test_only_a_proxy_that_is_trusted_says_what_the_scheme_is(tmp_path: Path) -> None:
    proxy_headers = {"X-Forwarded-Proto": "https", "Host": "hub.example.com"}
    named = {"stop_grace_s": 2, "hosts": "hub.example.com"}
    with running_hub(tmp_path / "data", server_settings=ServerSettings(**named)) as hub:
        name = fill(hub)
        assert links(hub, name, proxy_headers, None) == {"http://hub.example.com"}
    settings = ServerSettings(**named, trusted_proxies="10.1.2.3, 192.168.0.0/16")
    with running_hub(tmp_path / "data", server_settings=settings) as hub:
        assert links(hub, name, proxy_headers, None) == {"http://hub.example.com"}
    settings = ServerSettings(**named, trusted_proxies="10.1.2.3,127.0.0.0/8")
    with running_hub(tmp_path / "data", server_settings=settings) as hub:
        assert links(hub, name, proxy_headers, None) == {"https://hub.example.com"}
        # Neither http nor https.
        proxy_headers["X-Forwarded-Proto"] = "javascript"
        assert links(hub, name, proxy_headers, None) == {"http://hub.example.com"}


@needs_nginx
def test_a_proxy_that_passes_nothing_on_needs_the_public_url(tmp_path: Path) -> None:
    settings = ServerSettings(
        stop_grace_s=2, public_url="https://Hub.example.com:8443/", trusted_proxies="10.0.0.1"
    )
    with running_hub(tmp_path / "data", server_settings=settings) as hub:
        name = fill(hub)
        hidden = ("Host", "X-Forwarded-Proto")
        with tls_proxy(hub.address, tmp_path / "nginx", without=hidden) as proxy:
            assert links(hub, name, {}, proxy) == {"https://hub.example.com:8443"}
        assert links(hub, name, {"Host": "127.0.0.1"}, None) == {"https://hub.example.com:8443"}


@pytest.mark.parametrize(
    "settings",
    [
        {"public_url": "hub.example.com"},
        {"public_url": "ftp://hub.example.com"},
        {"public_url": "https://hub.example.com/a b"},
        {"public_url": "https://hub.example.com/hub?x=1"},
        {"cors_origins": "https://app.example/"},
        {"cors_origins": "app.example"},
        {"public_url": "https://hub.example.com?x"},
        {"public_url": "https://user@hub.example.com"},
        {"public_url": "https://hub.example.com:99999"},
        {"public_url": "https://hub .example.com"},
        {"public_url": "https://"},
        {"trusted_proxies": "proxy.example.com"},
        {"trusted_proxies": "10.0.0.1/8"},
        {"hosts": "https://hub.example.com"},
        {"hosts": "hub.example.com:8377"},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(WrongSetting):
        ServerSettings(**settings)  # type: ignore[arg-type]  # all of these are text

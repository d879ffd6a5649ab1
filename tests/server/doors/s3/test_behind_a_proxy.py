"""Signatures hold through nginx, as docs/operations.md configures it, whatever the key."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from deltahub.server.settings import ServerSettings
from support.s3.door import Door, code_of
from support.s3.world import FILES, World
from support.service.hub import running_hub
from support.service.tls_proxy import NGINX, tls_proxy

needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@needs_nginx
def test_the_host_the_path_and_the_query_reach_the_hub_as_they_were_signed(
    world: World, tmp_path: Path
) -> None:
    port = urlsplit(world.ann.url).port
    assert port is not None
    with tls_proxy(("127.0.0.1", port), tmp_path / "proxy") as proxy:
        door = replace(world.ann, url=proxy.url, trust=proxy.trust)
        for path, data in FILES.items():
            assert door.get("ann", f"tiny/{path}").body == data
            assert door.send("GET", *door.link(f"/ann/tiny/{quote(path)}")).body == data
        part = door.get("ann", "tiny/model.safetensors", Range="bytes=8-455")
        assert (part.status, part.body) == (206, FILES["model.safetensors"][8:456])
        assert door.list("ann", list_type=2, prefix="tiny/d/a b+").keys == ["tiny/d/a b+c%2F.txt"]
        assert code_of(door.call("GET", "/ann//tiny//config.json")) == (404, "NoSuchKey")
        assert code_of(door.call("PUT", "/ann/tiny/x", body=b"x")) == (405, "MethodNotAllowed")
    with tls_proxy(("127.0.0.1", port), tmp_path / "other", without=("Host",)) as proxy:
        door = replace(world.ann, url=proxy.url, trust=proxy.trust)
        assert code_of(door.get("ann", "tiny/config.json")) == (403, "SignatureDoesNotMatch")


@needs_nginx
def test_one_port_of_the_hub_serves_both_hosts(tmp_path: Path) -> None:
    # The public address does not count for S3: its host is what a client signed.
    settings = ServerSettings(
        s3_url="http://s3.example.com", public_url="https://hub.example.com/below",
        trusted_proxies="127.0.0.1", stop_grace_s=2,
    )  # fmt: skip
    with running_hub(tmp_path / "data", server_settings=settings) as hub:
        hub.create("admin/m", private=True)
        hub.commit("admin/m", {"a.txt": b"a"})
        door = Door(hub.url).by(hub, hub.admin_token)
        answer = door.call("GET", "/admin/m/a.txt", headers={"Host": "s3.example.com"})
        assert (answer.status, answer.body) == (200, b"a")
        below = hub.call("GET", "/below/admin/m/resolve/main/a.txt", token=hub.admin_token)
        assert below.body == b"a"

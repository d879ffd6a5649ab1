"""Where the S3 door is: at a port of its own, for a host of its own, at every server process."""

import json
from pathlib import Path

import pytest

from deltahub.client import Hub
from deltahub.registry.settings import WrongSetting
from deltahub.server.settings import ServerSettings
from support.s3.door import Door, code_of
from support.s3.world import FILES, World
from support.service.client_process import deltahub
from support.service.hub import running_hub, served_hub
from support.web.page_reader import Browser

HOST = {"Host": "s3.hub.example.com"}


def test_each_port_has_its_own_door(world: World) -> None:
    assert world.hub.call("GET", "/ann/tiny/resolve/main/config.json").status == 200
    assert world.hub.call("GET", "/ann/tiny/config.json").status == 404
    assert code_of(world.ann.guests.get("ann", "tiny/resolve/main/config.json"))[0] == 404
    assert code_of(world.ann.guests.call("GET", "/v1/health/live"))[0] == 404
    refused = world.ann.guests.send("GET", "/ann/tiny/config.json", headers={"Host": "evil.com"})
    assert code_of(refused) == (403, "AccessDenied")


def test_a_page_shows_the_lines_for_engines(world: World) -> None:
    public = world.hub.call("GET", "/ann/tiny/use").body.decode()
    assert "vllm serve s3://ann/tiny --load-format runai_streamer" in public
    assert f"AWS_ENDPOINT_URL={world.ann.url}" in public
    token = Browser(world.hub, world.token).session
    private = world.hub.call("GET", "/ann/secret/use", headers={"Cookie": token}).body.decode()
    assert "deltahub token s3" in private
    assert "RUNAI_STREAMER_S3_UNSIGNED" not in private


def test_without_a_setting_there_is_no_door(tmp_path: Path) -> None:
    with running_hub(tmp_path / "data") as hub, Hub(hub.url, hub.admin_token) as client:
        hub.create("admin/m")
        assert b"use-s3" not in hub.call("GET", "/admin/m/use").body
        assert client.s3_keys().endpoint_url is None
        environment = {"DELTAHUB_URL": hub.url, "DELTAHUB_TOKEN": hub.admin_token}
        done = deltahub("token", "s3", environment=environment)
        assert "AWS_SECRET_ACCESS_KEY=" in done.out
        assert "DELTAHUB_SERVER_S3_PORT" in done.err


def test_a_host_of_its_own_at_the_port_of_the_hub(tmp_path: Path) -> None:
    settings = ServerSettings(s3_url="https://S3.hub.example.com", stop_grace_s=2)
    with running_hub(tmp_path / "data", server_settings=settings) as hub:
        hub.create("admin/m")
        hub.commit("admin/m", {"a.txt": b"a"})
        for host in ("s3.hub.example.com", "S3.Hub.example.com:443"):
            door = Door(hub.url).by(hub, hub.admin_token)
            assert door.keys is not None
            assert door.keys.endpoint_url == "https://s3.hub.example.com"
            answer = door.call("GET", "/admin/m/a.txt", headers={"Host": host})
            assert (answer.status, answer.body) == (200, b"a")
        assert hub.call("GET", "/admin/m/resolve/main/a.txt").body == b"a"
        assert hub.call("GET", "/admin/m/resolve/main/a.txt", headers=HOST).status == 404


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"s3_url": "https://hub.example.com/s3"}, "no path"),
        ({"s3_url": "s3.hub.example.com"}, "no address"),
        ({"s3_port": 70000}, "65535"),
        (
            {"s3_url": "https://hub.example.com", "public_url": "https://hub.example.com"},
            "a host name or a port of its own",
        ),
    ],
)
def test_a_wrong_place_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(WrongSetting, match=says):
        ServerSettings(**given)


def test_commands_print_keys_that_every_server_process_takes(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    arguments = ("--s3-port", "0", "--workers", "2", "--no-worker")
    with served_hub(data_dir, arguments=arguments) as hub:
        hub.create("admin/m", private=True)
        hub.commit("admin/m", FILES)
        environment = {"DELTAHUB_URL": hub.url, "DELTAHUB_TOKEN": hub.admin_token}
        lines = deltahub("token", "s3", environment=environment).out.split()
        printed = dict(line.split("=", 1) for line in lines)
        assert printed["AWS_ENDPOINT_URL"] == hub.s3_url
        at = {"DELTAHUB_DATA_DIR": str(data_dir)}
        operators = deltahub("user", "token", "s3", "1", "--json", environment=at).json()
        assert operators["access_key_id"] == printed["AWS_ACCESS_KEY_ID"]
        assert operators["secret_access_key"] == printed["AWS_SECRET_ACCESS_KEY"]
        with Hub(hub.url, hub.admin_token) as client:
            door = Door(hub.s3_url, client.s3_keys())
        for _ in range(12):  # each on a connection of its own, which any process takes
            assert door.get("admin", "m/config.json").body == FILES["config.json"]
        absent = deltahub("user", "token", "s3", "77", "--json", environment=at)
        assert absent.status == 3
        assert "no token 77" in json.loads(absent.err)["error"]["message"]

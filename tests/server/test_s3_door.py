"""S3 clients read models: one of each call, and one refusal; more in tests/server/doors/s3."""

from pathlib import Path

from deltahub.server.settings import ServerSettings
from support.s3.door import Door, code_of
from support.service.hub import running_hub


def test_a_private_model_is_listed_and_read_with_keys_alone(tmp_path: Path) -> None:
    settings = ServerSettings(s3_port=0, stop_grace_s=2)
    with running_hub(tmp_path / "data", server_settings=settings) as hub:
        hub.create("admin/m", private=True)
        hub.commit("admin/m", {"a b+c.txt": b"0123456789"})
        door = Door(hub.s3_url).by(hub, hub.admin_token)
        assert b"<Name>admin</Name>" in door.call("GET", "/").body
        assert door.list("admin", list_type=2, prefix="m/").keys == ["m/a b+c.txt"]
        assert door.call("HEAD", "/admin/m/a%20b%2Bc.txt").headers["Content-Length"] == "10"
        part = door.get("admin", "m@main/a b+c.txt", Range="bytes=2-4")
        assert (part.status, part.body) == (206, b"234")
        assert door.send("GET", *door.link("/admin/m/a%20b%2Bc.txt")).body == b"0123456789"
        assert code_of(door.guests.get("admin", "m/a b+c.txt")) == (404, "NoSuchBucket")
        assert code_of(door.call("PUT", "/admin/m/x", body=b"x")) == (405, "MethodNotAllowed")

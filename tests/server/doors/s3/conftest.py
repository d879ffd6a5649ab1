"""A hub with an S3 door, and models of admin's and of ann's, public and private."""

from collections.abc import Iterator

import pytest

from deltahub.registry.access import tokens
from deltahub.registry.catalog.refs import create_ref
from deltahub.server.settings import ServerSettings
from support.s3.door import Door
from support.s3.world import FILES, World
from support.service.hub import running_hub


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    settings = ServerSettings(s3_port=0, stop_grace_s=2)
    folder = tmp_path_factory.mktemp("s3")
    with running_hub(folder / "data", server_settings=settings) as hub:
        token = hub.user("ann")
        for name in ("tiny", "tiny-2", "tiny.x", "Upper"):
            hub.create(f"ann/{name}", token=token)
        hub.create("ann/secret", private=True, token=token)
        first = hub.commit("ann/tiny", {"config.json": b"old", "old.txt": b"old"}, token)["commit"]
        caller = tokens.authenticate(hub.registry, token)
        create_ref(hub.registry, caller, "ann/tiny", "tag", "v1", first)
        operations = [{"op": "delete", "path": "old.txt"}]
        hub.call(
            "POST", "/v1/repositories/ann/tiny/commits", token=token,
            body={"operations": operations},
        )  # fmt: skip
        second = hub.commit("ann/tiny", FILES, token)["commit"]
        create_ref(hub.registry, caller, "ann/tiny", "branch", "dev/x", second)
        hub.commit("ann/tiny", {"branch.txt": b"b"}, token, ref="dev/x")
        for name in ("tiny-2", "tiny.x", "Upper", "secret"):
            hub.commit(f"ann/{name}", {"a.txt": b"a", "b/c.txt": b"c"}, token)
        hub.create("admin/alone", private=True)
        hub.commit("admin/alone", {"a.txt": b"a"})
        yield World(hub, Door(hub.s3_url).by(hub, token), token, first)

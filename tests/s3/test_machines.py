"""Two servers of one hub, each with a data folder of its own, behind a balancer that forgets."""

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from deltahub.registry.access import tokens
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.spools.bucket import sizes
from deltahub.server.settings import ServerSettings
from support.service.hub import RunningHub, running_hub
from support.service.machines import SharedHub
from support.stores.upload_contract import spooled

PART = 5 << 20
LFS_PART = 3 << 20


@pytest.fixture
def hubs(
    shared: SharedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[RunningHub]]:
    monkeypatch.setattr(sizes, "PART_BYTES", PART)
    settings = ServerSettings(stop_grace_s=2, lfs_part_bytes=LFS_PART, idle_s=20)
    (tmp_path / "two").mkdir()
    with ExitStack() as stack:
        started = []
        for name in ("one", "two"):
            hub = running_hub(
                tmp_path / name,
                server_settings=settings,
                database_url=shared.database_url,
                store_url=shared.store_url,
            )
            started.append(stack.enter_context(hub))
            # Links that one server signs are followed at the other.
            key = (tmp_path / "one/signing.key").read_bytes()
            (tmp_path / "two/signing.key").write_bytes(key)
        yield started
        assert spooled(started[0].registry) == []
        assert list(fsck(started[1].registry, read_data=True)) == []


@pytest.fixture
def token(hubs: list[RunningHub]) -> str:
    return tokens.create_token(hubs[0].registry, "admin", "admin")


def test_a_put_with_ranges_goes_on_at_the_other_server(hubs: list[RunningHub], token: str) -> None:
    data = os.urandom(2 * PART + 12_345)
    path, at, turn = f"/v1/uploads/{sha256(data).hexdigest()}", 0, 0
    cuts = [1000, PART - 1, PART + 7, 2 * PART, len(data)]
    for end in cuts:
        headers = {"Content-Range": f"bytes {at}-{end - 1}/{len(data)}"}
        here, there = hubs[turn % 2], hubs[(turn + 1) % 2]
        answer = here.call("PUT", path, token=token, body=data[at:end], headers=headers)
        assert answer.status == (201 if end == len(data) else 202), answer.body
        shown = there.call("HEAD", path, token=token)
        assert shown.headers["Upload-Offset"] == str(end)
        at, turn = end, turn + 1
    assert shown.headers["Upload-Complete"] == "1"


def test_parts_of_git_lfs_go_to_either_server(hubs: list[RunningHub], token: str) -> None:
    one, chance = hubs[0], random.Random(3)
    one.create("admin/m", token=token)
    data = os.urandom(3 * LFS_PART + 54_321)
    oid = sha256(data).hexdigest()
    asked: dict[str, Any] = {
        "operation": "upload",
        "transfers": ["basic", "multipart"],
        "objects": [{"oid": oid, "size": len(data)}],
    }
    answer = one.call("POST", "/admin/m.git/info/lfs/objects/batch", token=token, body=asked)
    [item] = answer.json()["objects"]
    action = item["actions"]["upload"]
    links = {int(n): urlsplit(url).path for n, url in action["header"].items() if n.isdigit()}
    assert len(links) == 4

    def put(number: int) -> int:
        body = data[(number - 1) * LFS_PART : number * LFS_PART]
        return chance.choice(hubs).call("PUT", links[number], body=body).status

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(put, sorted(links, reverse=True))) == {200}
    complete = urlsplit(action["href"]).path
    body = {"oid": oid, "parts": []}
    assert [hub.call("POST", complete, body=body).status for hub in hubs] == [200, 200]
    added = {"op": "add", "path": "w.bin", "sha256": oid, "size": len(data)}
    committed = hubs[1].call(
        "POST", "/v1/repositories/admin/m/commits", token=token, body={"operations": [added]}
    )
    assert committed.status == 201, committed.body
    found = one.call("GET", "/v1/repositories/admin/m/files/w.bin", token=token)
    assert found.body == data

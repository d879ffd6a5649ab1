"""Git LFS: large files that Hugging Face clients send before the commit that names them."""

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deltahub.registry.access import tokens
from deltahub.registry.db.models import Landing
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.uploads import landing
from deltahub.server.settings import ServerSettings
from support.registry.opened import end_token
from support.service.hf_door import (
    batch,
    create_model,
    digest_of,
    error_of,
    files_of,
    header,
    large,
    path_of,
    send_commit,
    small,
)
from support.service.hub import Answer, RunningHub, running_hub


@pytest.fixture
def name(hub: RunningHub, request: pytest.FixtureRequest) -> str:
    name = "admin/l-" + digest_of(request.node.name.encode())[:12]
    assert create_model(hub, name).status == 200
    return name


def test_an_object_is_asked_for_once(hub: RunningHub, name: str) -> None:
    data = os.urandom(3000)
    for is_new in (True, False):
        answer = batch(hub, name, (digest_of(data), 3000), transfers=("basic", "multipart", "xet"))
        assert answer.json()["transfer"] == "basic"
        (item,) = answer.json()["objects"]
        assert ("actions" in item) == is_new
        if is_new:
            upload, verify = item["actions"]["upload"], item["actions"]["verify"]
            query = {"oid": digest_of(data), "size": 3000}
            path = path_of(verify["href"])
            assert hub.call("POST", path, token=hub.admin_token, body=query).status == 404
            assert hub.call("PUT", path_of(upload["href"]), body=data).status == 200
            assert hub.call("POST", path, token=hub.admin_token, body=query).status == 200


def test_an_object_that_is_another_is_refused(hub: RunningHub, name: str) -> None:
    data = os.urandom(3000)
    (item,) = batch(hub, name, (digest_of(data), 3000)).json()["objects"]
    href = path_of(item["actions"]["upload"]["href"])
    assert error_of(hub.call("PUT", href, body=data[:-1])) == (422, "size_mismatch")
    assert error_of(hub.call("PUT", href, body=bytes(3000))) == (422, "hash_mismatch")
    assert error_of(hub.call("PUT", href[:-1] + "x", body=data))[0] == 401
    with hub.registry.db.read() as session:
        assert session.query(Landing).filter_by(sha256=digest_of(data)).count() == 0
    assert hub.call("PUT", href, body=data).status == 200


@pytest.mark.parametrize("ends", ["revoked", "expired"])
def test_a_link_ends_with_the_token_for_which_it_was_made(hub: RunningHub, ends: str) -> None:
    gus = f"gus-{ends}"
    token = hub.user(gus)
    assert create_model(hub, f"{gus}/m", token).status == 200
    data = os.urandom(3000)
    (item,) = batch(hub, f"{gus}/m", (digest_of(data), 3000), token=token).json()["objects"]
    href = path_of(item["actions"]["upload"]["href"])
    end_token(hub.registry, gus, ends)
    tokens.create_token(hub.registry, gus, "write")
    assert error_of(hub.call("PUT", href, body=data)) == (401, "unauthorized")
    whole = {"oid": digest_of(data), "parts": []}
    for method, part, body in (("PUT", "parts/1", data), ("POST", "complete", whole)):
        answer = hub.call(method, f"{href}/{part}", body=body)
        assert error_of(answer) == (401, "unauthorized")
    with hub.registry.db.read() as session:
        assert session.query(Landing).filter_by(sha256=digest_of(data)).count() == 0


@pytest.fixture(scope="module")
def parts_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    settings = ServerSettings(stop_grace_s=2, lfs_part_bytes=50_000, idle_s=5)
    folder: Path = tmp_path_factory.mktemp("parts") / "data"
    with running_hub(folder, server_settings=settings) as running:
        assert create_model(running, "admin/parts").status == 200
        yield running
        assert list(fsck(running.registry, read_data=True)) == []


def begin_parts(hub: RunningHub, data: bytes) -> tuple[str, dict[int, str]]:
    answer = batch(hub, "admin/parts", (digest_of(data), len(data)), transfers=("multipart",))
    assert answer.json()["transfer"] == "multipart"
    (item,) = answer.json()["objects"]
    action = item["actions"]["upload"]
    links = {int(n): path_of(url) for n, url in action["header"].items() if n.isdigit()}
    assert int(action["header"]["chunk_size"]) == 50_000
    assert set(links) == set(range(1, -(-len(data) // 50_000) + 1))
    return path_of(action["href"]), links


def part_of(data: bytes, number: int) -> bytes:
    return data[(number - 1) * 50_000 : number * 50_000]


def test_parts_come_in_any_order_at_once_and_again(parts_hub: RunningHub) -> None:
    data = os.urandom(275_000)
    href, links = begin_parts(parts_hub, data)

    def put(number: int) -> Answer:
        return parts_hub.call("PUT", links[number], body=part_of(data, number))

    with ThreadPoolExecutor(8) as pool:
        answers = dict(zip((6, 5, 4, 3, 2, 1), pool.map(put, (6, 5, 4, 3, 2, 1)), strict=True))
    assert {number: answer.status for number, answer in answers.items()} == dict.fromkeys(
        links, 200
    )
    assert put(1).status == put(4).status == 200  # the client repeats after a lost answer
    parts = [{"partNumber": n, "etag": answers[n].headers["ETag"]} for n in sorted(links)]
    body = {"oid": digest_of(data), "parts": parts}
    assert parts_hub.call("POST", href, body=body).status == 200
    line = large("w.bin", data)
    assert send_commit(parts_hub, "admin/parts", header(), line).status == 200
    assert files_of(parts_hub, "admin/parts")["w.bin"] == data


def leave_whole_but_incomplete(hub: RunningHub, data: bytes) -> None:
    """As a hub does that is killed after the last byte, before it has made the object."""
    admin = tokens.authenticate(hub.registry, hub.admin_token)
    state = landing.begin(hub.registry, admin, digest_of(data), len(data))
    (hub.registry.spool_folder / state.id).write_bytes(data)


def test_an_object_that_is_whole_and_was_not_completed_is_completed_by_the_next_try(
    hub: RunningHub, name: str, parts_hub: RunningHub
) -> None:
    data = os.urandom(120_000)
    leave_whole_but_incomplete(parts_hub, data)
    href, links = begin_parts(parts_hub, data)
    for n, link in links.items():
        assert parts_hub.call("PUT", link, body=part_of(data, n)).status == 200
    body = {"oid": digest_of(data), "parts": []}
    assert parts_hub.call("POST", href, body=body).status == 200
    whole = os.urandom(3000)
    leave_whole_but_incomplete(hub, whole)
    (item,) = batch(hub, name, (digest_of(whole), 3000)).json()["objects"]
    assert hub.call("PUT", path_of(item["actions"]["upload"]["href"]), body=whole).status == 200
    (item,) = batch(hub, name, (digest_of(whole), 3000)).json()["objects"]
    assert "actions" not in item


def test_parts_that_lack_one_are_not_complete(parts_hub: RunningHub) -> None:
    data = os.urandom(120_000)
    href, links = begin_parts(parts_hub, data)
    assert parts_hub.call("PUT", links[1], body=part_of(data, 1)).status == 200
    late = parts_hub.call("PUT", links[3], body=part_of(data, 3))
    assert error_of(late) == (409, "conflict")
    body = {"oid": digest_of(data), "parts": [{"partNumber": 1, "etag": "x"}]}
    assert error_of(parts_hub.call("POST", href, body=body)) == (422, "size_mismatch")
    wrong = parts_hub.call("PUT", links[2], body=b"short")
    assert error_of(wrong) == (422, "size_mismatch")


def test_who_sends_what_another_connection_is_sending_waits_for_it(parts_hub: RunningHub) -> None:
    data = os.urandom(45_000)
    first = socket.create_connection(parts_hub.address)
    (item,) = batch(parts_hub, "admin/parts", (digest_of(data), len(data))).json()["objects"]
    href = path_of(item["actions"]["upload"]["href"])
    head = f"PUT {href} HTTP/1.1\r\nHost: hub\r\nContent-Length: {len(data)}\r\n\r\n"
    with first, ThreadPoolExecutor(2) as pool:
        before = set(parts_hub.data_dir.glob("spool/*"))
        first.sendall(head.encode() + data[:20_000])
        while set(parts_hub.data_dir.glob("spool/*")) <= before:
            time.sleep(0.01)
        other = pool.submit(parts_hub.call, "PUT", href, body=data)
        time.sleep(0.2)
        assert not other.done()
        first.sendall(data[20_000:])
        assert first.recv(12) == b"HTTP/1.1 200"
        assert other.result().status == 200


def test_who_sends_it_within_a_commit_waits_for_nobody(parts_hub: RunningHub) -> None:
    data = os.urandom(45_000)
    first = socket.create_connection(parts_hub.address)
    (item,) = batch(parts_hub, "admin/parts", (digest_of(data), len(data))).json()["objects"]
    href = path_of(item["actions"]["upload"]["href"])
    head = f"PUT {href} HTTP/1.1\r\nHost: hub\r\nContent-Length: {len(data)}\r\n\r\n"
    with first:
        before = set(parts_hub.data_dir.glob("spool/*"))
        first.sendall(head.encode() + data[:20_000])
        while set(parts_hub.data_dir.glob("spool/*")) <= before:
            time.sleep(0.01)
        sent = send_commit(parts_hub, "admin/parts", header(), small("same.json", data))
        assert sent.status == 200
        assert files_of(parts_hub, "admin/parts")["same.json"] == data
        first.sendall(data[20_000:])
        assert first.recv(12) == b"HTTP/1.1 200"
    assert files_of(parts_hub, "admin/parts")["same.json"] == data


def test_what_a_broken_connection_began_is_taken_up(parts_hub: RunningHub) -> None:
    data = os.urandom(45_000)
    (item,) = batch(parts_hub, "admin/parts", (digest_of(data), len(data))).json()["objects"]
    href = path_of(item["actions"]["upload"]["href"])
    head = f"PUT {href} HTTP/1.1\r\nHost: hub\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(parts_hub.address) as first:
        first.sendall(head.encode() + data[:20_000])
    assert parts_hub.call("PUT", href, body=data).status == 200
    line = large("again.bin", data)
    assert send_commit(parts_hub, "admin/parts", header(), line).status == 200
    assert files_of(parts_hub, "admin/parts")["again.bin"] == data

"""Downloads: whole, by range, and the headers that caches and resuming clients rely on."""

import http.client
import os
import shutil
import socket
import time
from hashlib import sha1, sha256
from pathlib import Path

import pytest

from deltahub.registry.db.models import Landing
from deltahub.registry.maintenance.repair.run import repair
from deltahub.registry.storage.keys import landing_key
from deltahub.server.process.serve import UNSENT_BYTES
from deltahub.server.settings import ServerSettings
from support.service.hub import Answer, RunningHub, running_hub

DATA = os.urandom(3 * (1 << 20) + 12345)
FILES = "/v1/repositories/admin/files/files"


@pytest.fixture(scope="module")
def commit(hub: RunningHub) -> str:
    hub.create("admin/files")
    files = {
        "model.bin": DATA,
        "config.json": b'{"a": 1}',
        "empty.txt": b"",
        "sub folder/å+%.txt": b"odd name",
    }
    return str(hub.commit("admin/files", files)["commit"])


def get(hub: RunningHub, path: str = "model.bin", method: str = "GET", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return hub.call(method, f"{FILES}/{path}", headers=named)


def test_a_file_comes_back_with_what_clients_need(hub: RunningHub, commit: str) -> None:
    answer = get(hub)
    assert answer.status == 200
    assert answer.body == DATA
    headers = answer.headers
    assert headers["ETag"] == f'"{sha256(DATA).hexdigest()}"'
    assert headers["Content-Length"] == str(len(DATA))
    assert headers["Accept-Ranges"] == "bytes"
    assert headers["X-DeltaHub-Commit"] == commit
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Disposition"] == "attachment; filename*=UTF-8''model.bin"


def test_the_hub_counts_what_it_read_and_what_it_rebuilt(hub: RunningHub, commit: str) -> None:
    def counters() -> tuple[int, int]:
        found = hub.call("GET", "/v1/metrics", token=hub.admin_token).json()
        return found["uploaded_bytes"], found["rebuilt_bytes"]

    before = counters()
    get(hub)
    # Nothing is ingested on this hub: it has no worker.
    assert counters() == (before[0] + len(DATA), before[1])


def test_a_small_text_file_has_the_etag_that_git_gives_it(hub: RunningHub, commit: str) -> None:
    expected = sha1(b"blob 8\0" + b'{"a": 1}').hexdigest()
    assert get(hub, "config.json").headers["ETag"] == f'"{expected}"'


def test_an_empty_file_is_empty(hub: RunningHub, commit: str) -> None:
    answer = get(hub, "empty.txt")
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "0")


@pytest.mark.parametrize("revision", ["main", "refs%2Fheads%2Fmain", "{commit}", "{short}"])
def test_a_revision_has_many_names(hub: RunningHub, commit: str, revision: str) -> None:
    named = revision.format(commit=commit, short=commit[:9])
    assert get(hub, f"config.json?revision={named}").body == b'{"a": 1}'


def test_odd_names_are_quoted_both_ways(hub: RunningHub, commit: str) -> None:
    answer = get(hub, "sub%20folder/%C3%A5%2B%25.txt")
    assert answer.body == b"odd name"
    assert answer.headers["Content-Disposition"].endswith("UTF-8''%C3%A5%2B%25.txt")


def test_head_tells_the_same_without_the_bytes(hub: RunningHub, commit: str) -> None:
    whole, head = get(hub), get(hub, method="HEAD")
    assert (head.status, head.body) == (200, b"")
    for name in ("ETag", "Content-Length", "Accept-Ranges", "X-DeltaHub-Commit"):
        assert head.headers[name] == whole.headers[name]


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-99", 0, 100),
        ("bytes=1048570-1048590", 1048570, 1048591),
        (f"bytes={len(DATA) - 1}-", len(DATA) - 1, len(DATA)),
        ("bytes=2000000-", 2_000_000, len(DATA)),
        ("bytes=-500", len(DATA) - 500, len(DATA)),
        ("bytes=-99999999", 0, len(DATA)),
        ("bytes=5-99999999999999", 5, len(DATA)),
    ],
)
def test_a_range_is_exactly_that_range(
    hub: RunningHub, commit: str, asked: str, start: int, end: int
) -> None:
    answer = get(hub, Range=asked)
    assert answer.status == 206
    assert answer.headers["Content-Range"] == f"bytes {start}-{end - 1}/{len(DATA)}"
    assert answer.headers["Content-Length"] == str(end - start)
    assert answer.body == DATA[start:end]


@pytest.mark.parametrize("asked", [f"bytes={len(DATA)}-", f"bytes={len(DATA)}-9999999", "bytes=-0"])
def test_a_range_outside_of_the_file_says_how_long_it_is(
    hub: RunningHub, commit: str, asked: str
) -> None:
    answer = get(hub, Range=asked)
    assert (answer.status, answer.code) == (416, "range_not_satisfiable")
    assert answer.headers["Content-Range"] == f"bytes */{len(DATA)}"


@pytest.mark.parametrize(
    "asked",
    ["bytes=5-2", "bytes=-", "bytes=a-b", "lines=0-1", "bytes=0-1,5-6", "bytes", "bytes=1" * 99],
)
def test_what_is_no_single_range_gives_the_whole_file(
    hub: RunningHub, commit: str, asked: str
) -> None:
    answer = get(hub, "config.json", Range=asked)
    assert (answer.status, answer.body) == (200, b'{"a": 1}')


def test_a_resumed_download_of_another_version_starts_over(hub: RunningHub, commit: str) -> None:
    etag = get(hub, method="HEAD").headers["ETag"]
    same = get(hub, Range="bytes=10-", If_Range=etag)
    assert (same.status, same.body) == (206, DATA[10:])
    for other in ('"something else"', f"W/{etag}", "Sat, 21 Nov 2026 00:00:00 GMT"):
        answer = get(hub, Range="bytes=10-", If_Range=other)
        assert (answer.status, answer.body) == (200, DATA)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("known", ["{etag}", "W/{etag}", '"x", {etag}', "*"])
def test_what_the_client_has_is_not_sent_again(
    hub: RunningHub, commit: str, method: str, known: str
) -> None:
    etag = get(hub, method="HEAD").headers["ETag"]
    answer = get(hub, method=method, If_None_Match=known.format(etag=etag))
    assert (answer.status, answer.body) == (304, b"")
    assert answer.headers["ETag"] == etag
    assert get(hub, method=method, If_None_Match='"other"').status == 200


def test_absent_files_revisions_and_repositories_each_say_so(hub: RunningHub, commit: str) -> None:
    assert get(hub, "nothing.bin").code == "entry_not_found"
    assert get(hub, "config.json?revision=nothing").code == "revision_not_found"
    answer = hub.call("GET", "/v1/repositories/admin/nothing/files/x")
    assert (answer.status, answer.code) == (404, "repository_not_found")
    assert get(hub, "..%2f..%2fetc%2fpasswd").status == 404
    assert get(hub, "%00").status in (404, 422)


def test_many_downloads_at_once_all_come_whole(hub: RunningHub, commit: str) -> None:
    connections = []
    for _ in range(12):
        connection = http.client.HTTPConnection(*hub.address, timeout=60)
        connection.request("GET", f"{FILES}/model.bin")
        connections.append(connection)
    # Read one after the other: connections that nobody reads yet must not block others.
    for connection in reversed(connections):
        assert connection.getresponse().read() == DATA
        connection.close()


def test_a_client_that_goes_away_stops_the_reading_without_a_word(
    hub: RunningHub, commit: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        with socket.create_connection(hub.address) as connection:
            head = f"GET {FILES}/model.bin HTTP/1.1\r\nHost: hub\r\n\r\n"
            connection.sendall(head.encode())
            connection.recv(1000)
    deadline = time.monotonic() + 10
    while len(hub.server.server_state.tasks) > 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert get(hub).body == DATA
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_client_that_stops_reading_at_the_last_chunk_is_let_go(tmp_path: Path) -> None:
    settings = ServerSettings(idle_s=0.3, stop_grace_s=1)
    with running_hub(tmp_path / "data", server_settings=settings) as hub, socket.socket() as slow:
        hub.create("admin/files")
        hub.commit("admin/files", {"model.bin": DATA[: 1 << 20]})  # one chunk
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        slow.connect(hub.address)
        slow.sendall(f"GET {FILES}/model.bin HTTP/1.1\r\nHost: hub\r\n\r\n".encode())
        assert slow.recv(12) == b"HTTP/1.1 200"
        deadline = time.monotonic() + 10
        while len(hub.server.server_state.tasks) > 0:
            assert time.monotonic() < deadline, "the download still has its turn"
            time.sleep(0.02)


def test_little_waits_unsent_in_a_connection(hub: RunningHub, commit: str) -> None:
    connection = http.client.HTTPConnection(*hub.address, timeout=20)
    connection.request("HEAD", f"{FILES}/model.bin")
    connection.getresponse().read()
    local = connection.sock.getsockname()
    transports = [each.transport for each in hub.server.server_state.connections]
    (taken,) = [each for each in transports if each.get_extra_info("peername") == local]
    of_hub = taken.get_extra_info("socket")
    waits = of_hub.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
    assert waits == UNSENT_BYTES
    connection.close()


def test_bytes_that_are_gone_are_a_clean_error_and_never_padding(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_hub(tmp_path / "data") as hub:
        hub.create("admin/files")
        hub.commit("admin/files", {"model.bin": DATA})
        with hub.registry.db.read() as session:
            landing = session.query(Landing).one()
        path = hub.registry.data_dir / "objects" / landing_key(landing.id)
        assert path.is_file()
        kept = tmp_path / "kept"
        shutil.copy(path, kept)

        path.write_bytes(DATA[: 2 << 20])  # the third MiB is cut off
        connection = http.client.HTTPConnection(*hub.address, timeout=20)
        connection.request("GET", f"{FILES}/model.bin")
        response = connection.getresponse()
        assert response.status == 200
        with pytest.raises(http.client.IncompleteRead) as caught:
            response.read()
        assert DATA.startswith(caught.value.partial)
        connection.close()

        path.unlink()
        answer = get(hub)
        assert (answer.status, answer.code) == (500, "data_lost")
        shutil.copy(kept, path)  # the operator has a copy
        assert repair(hub.registry).restored_uploads == 1
        assert get(hub).body == DATA
    assert "model.bin cut: " in caplog.text
    assert [each.message for each in caplog.records if each.name.startswith("uvicorn")] == []

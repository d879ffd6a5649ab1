"""What a read may cost: rows, bytes and memory have bounds, and a page that ends early goes on."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import event

from deltahub.registry.db.models import File
from deltahub.registry.db.tables.trees import Entry
from deltahub.server.settings import ServerSettings
from support.service.hub import Answer, RunningHub, running_hub

N_FILES = 2500


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    settings = ServerSettings(
        page_bytes=100_000, page_entries=6000, max_headers_bytes=2000, stop_grace_s=2
    )
    folder = tmp_path_factory.mktemp("costs") / "data"
    with running_hub(folder, server_settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def large(hub: RunningHub) -> list[str]:
    """Models of N_FILES files each, of the user `many`."""
    token = hub.user("many")
    digest = hub.upload(b"x", token)
    names = [f"many/m{number}" for number in range(5)]
    operations = [
        {"op": "add", "path": f"d{i // 500}/f{i:05}", "sha256": digest, "size": 1}
        for i in range(N_FILES)
    ]
    for name in names:
        hub.create(name, token=token)
        body = {"operations": operations, "message": "first"}
        path = f"/v1/repositories/{name}/commits"
        assert hub.call("POST", path, token=token, body=body).status == 201
    return names


@contextmanager
def rows_loaded() -> Iterator[list[Any]]:
    rows: list[Any] = []

    def note(row: Any, _context: object) -> None:
        rows.append(row)

    for table in (Entry, File):
        event.listen(table, "load", note)
    try:
        yield rows
    finally:
        for table in (Entry, File):
            event.remove(table, "load", note)


def get(hub: RunningHub, path: str) -> Answer:
    answer = hub.call("GET", path)
    assert answer.status == 200, answer.body
    return answer


def pages(hub: RunningHub, url: str) -> list[list[Any]]:
    found = []
    while url:
        answer = get(hub, url)
        found.append(answer.json())
        link = urlsplit(answer.headers.get("Link", "").partition("<")[2].partition(">")[0])
        url = f"{link.path}?{link.query}" if link.path else ""
    return found


def bytes_read(hub: RunningHub) -> int:
    served = hub.call("GET", "/v1/metrics", token=hub.admin_token).json()
    return int(served["uploaded_bytes"] + served["rebuilt_bytes"])


def header_of(n_tensors: int) -> bytes:
    tensors = {
        f"t{i:03}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
        for i in range(n_tensors)
    }
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text + bytes(n_tensors)


def test_lists_load_no_entries_unless_they_show_them(hub: RunningHub, large: list[str]) -> None:
    with rows_loaded() as rows:
        for query in ("", "&expand=tags", "&cardData=true"):
            found = pages(hub, f"/api/models?author=many{query}")
            assert [item["id"] for page in found for item in page] == large[::-1]
        get(hub, "/v1/repositories?namespace=many")
    assert rows == []


def test_a_page_ends_after_the_entries_that_it_may_read(hub: RunningHub, large: list[str]) -> None:
    found = pages(hub, "/api/models?author=many&full=true")
    assert [len(page) for page in found] == [3, 2]
    siblings = [item["rfilename"] for item in found[1][1]["siblings"]]
    assert siblings == [f"d{i // 500}/f{i:05}" for i in range(N_FILES)]
    # A page of a filtered list may show nothing, and leads on.
    for query in ("filter=none", "num_parameters=min:1"):
        found = pages(hub, f"/api/models?author=many&{query}&limit=1")
        assert [item for page in found for item in page] == []


def test_long_answers_are_whole(hub: RunningHub, large: list[str]) -> None:
    paths = [f"d{i // 500}/f{i:05}" for i in range(N_FILES)]
    answer = get(hub, f"/api/models/{large[0]}?blobs=true")
    assert answer.headers["Transfer-Encoding"] == "chunked"
    siblings = answer.json()["siblings"]
    assert [item["rfilename"] for item in siblings] == paths
    assert {item["size"] for item in siblings} == {1}
    revision = get(hub, f"/v1/repositories/{large[0]}/revision").json()
    assert [entry["path"] for entry in revision["entries"]] == paths
    assert revision["commit"] == get(hub, f"/api/models/{large[0]}").json()["sha"]


def test_the_last_commit_of_many_paths_is_known(hub: RunningHub) -> None:
    token = hub.user("history")
    name = "history/m"
    hub.create(name, token=token)
    digest = hub.upload(b"x", token)
    many = [
        {"op": "add", "path": f"many/f{i:04}", "sha256": digest, "size": 1} for i in range(1500)
    ]
    path = f"/v1/repositories/{name}/commits"
    body = {"operations": many, "message": "many"}
    first = hub.call("POST", path, token=token, body=body).json()["commit"]
    commits = [
        hub.commit(name, {"few/a": b"%d" % number}, token=token, message="few")["commit"]
        for number in range(10)
    ]
    hub.commit(name, {"last": b"x"}, token=token, message="last")
    tree = get(hub, f"/api/models/{name}/tree/main?expand=true").json()
    last = {item["path"]: item.get("lastCommit", {}).get("id") for item in tree}
    assert last["few"] == commits[-1]
    assert last["many"] == first
    (item,) = get(hub, f"/api/models/{name}/tree/{first}?expand=true").json()
    assert (item["path"], item["lastCommit"]["id"]) == ("many", first)


def test_a_page_of_commits_ends_after_long_messages(hub: RunningHub) -> None:
    token = hub.user("messages")
    name = "messages/m"
    hub.create(name, token=token)
    messages = [f"{number}\n\n{'x' * 60_000}" for number in range(12)]
    for number, message in enumerate(messages):
        hub.commit(name, {"a": b"%d" % number}, token=token, message=message)
    for limit in (3, 100):
        found = pages(hub, f"/api/models/{name}/commits/main?limit={limit}")
        assert [item["title"] for page in found for item in page] == [
            str(number) for number in reversed(range(12))
        ]
        assert max(map(len, found)) <= 4
    answer = get(hub, f"/api/models/{name}/commits/main?limit=3")
    assert answer.headers["X-Total-Count"] == "12"


def test_headers_that_are_too_large_together_are_refused_unread(hub: RunningHub) -> None:
    token = hub.user("shards")
    name = "shards/m"
    hub.create(name, token=token)
    shard = header_of(10)
    names = [f"s{number}.safetensors" for number in range(5)]
    index = json.dumps({"weight_map": {f"w{one}": one for one in names}}).encode()
    two = json.dumps({"metadata": {"a": 1}, "weight_map": {"x": names[0], "y": names[1]}}).encode()
    files = {"all.json": index, "two.json": two, **dict.fromkeys(names, shard)}
    hub.commit(name, files, token=token)
    url = f"/api/models/{name}/safetensors-metadata"
    before = bytes_read(hub)
    refused = hub.call("GET", f"{url}/all.json")
    assert (refused.status, refused.headers["X-Error-Code"]) == (413, "limit_exceeded")
    assert "2000 bytes" in refused.headers["X-Error-Message"]
    assert "get_safetensors_metadata" in refused.headers["X-Error-Message"]
    # The index alone: the length of the one header was read when the file was committed.
    assert bytes_read(hub) - before == len(index)
    answer = get(hub, f"{url}/two.json")
    header = json.loads(shard[8:-10])
    assert answer.json() == {
        "index": {"metadata": {"a": 1}},
        "headers": {names[0]: header, names[1]: header},
    }


def test_a_header_is_parsed_as_a_header(hub: RunningHub) -> None:
    token = hub.user("odd-header")
    name = "odd-header/m"
    hub.create(name, token=token)
    index = b'{"weight_map": {"a": "w.bin"}}'
    for text in (b"[" * 900, b'{"a":' * 100 + b"1" + b"}" * 100, b"[1]", b'{"a":NaN}'):
        shard = len(text).to_bytes(8, "little") + text
        hub.commit(name, {"i.json": index, "w.bin": shard}, token=token)
        refused = hub.call("GET", f"/api/models/{name}/safetensors-metadata/i.json")
        assert (refused.status, refused.headers["X-Error-Code"]) == (422, "invalid_request")
        assert "w.bin" in refused.headers["X-Error-Message"]
    deep = b'{"weight_map": {}, "x": ' + b"[" * 100 + b"]" * 100 + b"}"
    many = b'{"weight_map": {}, "x": [' + b"1," * 600_000 + b"1]}"
    for odd in (deep, many):
        hub.commit(name, {"i.json": odd}, token=token)
        refused = hub.call("GET", f"/api/models/{name}/safetensors-metadata/i.json")
        assert refused.status == 422


def test_a_search_has_a_most_of_words(hub: RunningHub) -> None:
    assert get(hub, f"/api/models?search={'+'.join(['nowhere'] * 20)}").json() == []
    refused = hub.call("GET", f"/api/models?search={'+'.join('a' * 5000)}")
    assert refused.status == 400
    assert "5000 words, and at most 20" in refused.headers["X-Error-Message"]

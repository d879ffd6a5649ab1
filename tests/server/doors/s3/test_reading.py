"""Objects are read whole and in part, by any spelling of their keys, and nothing else is."""

import base64
from hashlib import sha256
from urllib.parse import quote

import pytest

from support.s3.door import code_of, sentence_of
from support.s3.world import FILES, ODD, World

WEIGHTS = FILES["model.safetensors"]


@pytest.mark.parametrize("path", sorted(FILES))
def test_every_file_has_its_bytes_size_and_hash(world: World, path: str) -> None:
    answer = world.ann.get("ann", f"tiny/{path}", **{"x-amz-checksum-mode": "ENABLED"})
    assert (answer.status, answer.body) == (200, FILES[path])
    digest = sha256(FILES[path])
    assert answer.headers["x-amz-meta-sha256"] == digest.hexdigest()
    assert answer.headers["x-amz-checksum-sha256"] == base64.b64encode(digest.digest()).decode()
    resolved = world.hub.call("HEAD", f"/ann/tiny/resolve/main/{quote(path)}")
    assert answer.headers["ETag"] == resolved.headers["ETag"]
    head = world.ann.call("HEAD", f"/ann/tiny/{quote(path)}")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(FILES[path]))
    assert head.headers["Last-Modified"] == answer.headers["Last-Modified"]


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("bytes=0-7", slice(0, 8)), ("bytes=100-", slice(100, None)),
        ("bytes=-10", slice(-10, None)),
        ("bytes=5-999999", slice(5, None)), ("bytes=-999999", slice(0, None)),
        ("bytes=10239-10239", slice(10239, 10240)),
    ],
)  # fmt: skip
def test_a_range_gives_these_bytes(world: World, asked: str, part: slice) -> None:
    answer = world.ann.get("ann", "tiny/model.safetensors", Range=asked)
    assert (answer.status, answer.body) == (206, WEIGHTS[part])
    start, stop, _ = part.indices(len(WEIGHTS))
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(WEIGHTS)}"
    assert "x-amz-checksum-sha256" not in answer.headers
    head = world.ann.call("HEAD", "/ann/tiny/model.safetensors", headers={"Range": asked})
    assert head.status == 206
    assert head.headers["Content-Length"] == str(len(answer.body))


@pytest.mark.parametrize("asked", ["bytes=10240-", "bytes=99999-100000", "bytes=-0"])
def test_a_range_outside_is_refused(world: World, asked: str) -> None:
    answer = world.ann.get("ann", "tiny/model.safetensors", Range=asked)
    assert code_of(answer) == (416, "InvalidRange")
    assert answer.headers["Content-Range"] == f"bytes */{len(WEIGHTS)}"
    empty = world.ann.get("ann", "tiny/empty.txt", Range="bytes=0-0")
    assert code_of(empty) == (416, "InvalidRange")


def test_several_ranges_and_a_wrong_one_give_all(world: World) -> None:
    for asked in ("bytes=0-1,4-5", "bytes=5-2", "lines=1-2"):
        answer = world.ann.get("ann", "tiny/model.safetensors", Range=asked)
        assert (answer.status, answer.body) == (200, WEIGHTS)


def test_conditions_on_etag_and_date(world: World) -> None:
    plain = world.ann.get("ann", "tiny/config.json")
    etag, date = plain.headers["ETag"], plain.headers["Last-Modified"]
    past, future = "Sat, 01 Jan 2000 00:00:00 GMT", "Sat, 01 Jan 2050 00:00:00 GMT"
    expected = {
        304: [
            {"If-None-Match": etag}, {"If-None-Match": f'"x", {etag}'}, {"If-None-Match": "*"},
            {"If-Modified-Since": date}, {"If-Modified-Since": future},
            {"If-None-Match": etag, "If-Modified-Since": past},
        ],
        412: [
            {"If-Match": '"x"'}, {"If-Unmodified-Since": past},
            {"If-Match": '"x"', "If-None-Match": etag},
        ],
        200: [
            {"If-Match": etag}, {"If-Match": "*"}, {"If-None-Match": '"x"'},
            {"If-Modified-Since": past}, {"If-Unmodified-Since": date},
            {"If-Match": etag, "If-Unmodified-Since": past}, {"If-Modified-Since": "no date"},
            {"If-None-Match": '"x"', "If-Modified-Since": future},
        ],
    }  # fmt: skip
    for status, each in expected.items():
        for headers in each:
            for method in ("GET", "HEAD"):
                answer = world.ann.call(method, "/ann/tiny/config.json", headers=headers)
                assert answer.status == status, (headers, answer.body)
    answer = world.ann.get("ann", "tiny/config.json", **{"If-Match": '"x"'})
    assert code_of(answer) == (412, "PreconditionFailed")


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("tiny@main/config.json", FILES["config.json"]),
        ("tiny@HEAD/config.json", FILES["config.json"]),
        ("tiny@v1/config.json", b"old"),
        ("tiny@refs/tags/v1/old.txt", b"old"),
        ("tiny@dev/x/branch.txt", b"b"),
        ("tiny@dev%2Fx/branch.txt", b"b"),
        ("tiny@refs/heads/dev/x/branch.txt", b"b"),
        ("TINY/config.json", FILES["config.json"]),
        ("upper/a.txt", b"a"),
    ],
)
def test_a_revision_is_part_of_the_key(world: World, key: str, body: bytes) -> None:
    answer = world.ann.get("ann", key)
    assert (answer.status, answer.body) == (200, body)


def test_a_commit_is_a_revision_and_so_is_its_beginning(world: World) -> None:
    for revision in (world.first, world.first[:7]):
        assert world.ann.get("ANN", f"tiny@{revision}/config.json").body == b"old"


@pytest.mark.parametrize(
    "key",
    [
        "tiny", "tiny/", "tiny/CONFIG.JSON", "tiny/d", "tiny/d/", "tiny/nothing",
        "tiny//config.json", "tiny/config\n.json",
        "/tiny/config.json", "tiny/config.json/", "tiny@/config.json", "tiny@no/config.json",
        "tiny@v1", "tiny@v1/", "@main/x", "nothing/x", "tiny/a\0b", "ti\0ny/x", "tiny@a\0b/x",
        ".../x", "../x", "tiny/../tiny/config.json", "tiny@" + "a/" * 500 + "x", "\ufffe/\u2028",
        "tiny/config.json\n", "x" * 2000,
    ],
)  # fmt: skip
def test_what_is_no_file_is_not_there(world: World, key: str) -> None:
    answer = world.ann.get("ann", key)
    assert code_of(answer) == (404, "NoSuchKey"), answer.body
    head = world.ann.call("HEAD", f"/ann/{quote(key)}")
    assert (head.status, head.body) == (404, b"")


def test_a_path_that_is_no_text_is_refused(world: World) -> None:
    assert code_of(world.ann.guests.call("GET", "/ann/%ff%fe")) == (400, "InvalidURI")


def test_the_old_name_of_a_renamed_model_leads_to_it(world: World) -> None:
    hub = world.hub
    token = hub.user("mover")
    hub.create("mover/before", token=token)
    hub.commit("mover/before", {"a.txt": b"moved"}, token)
    body = {"fromRepo": "mover/before", "toRepo": "mover/after", "type": "model"}
    assert hub.call("POST", "/api/repos/move", token=token, body=body).status == 200
    for name in ("before", "after"):
        assert world.ann.get("mover", f"{name}/a.txt").body == b"moved"
        assert world.ann.list("mover", prefix=f"{name}/").keys == [f"{name}/a.txt"]
    assert world.ann.list("mover", delimiter="/").folders == ["after/"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("x-id=GetObject", (200, "")), ("versionId=null", (200, "")), ("partNumber=1", (200, "")),
        ("versionId=abc", (404, "NoSuchVersion")), ("partNumber=2", (416, "InvalidRange")),
        ("acl", (501, "NotImplemented")), ("tagging=", (501, "NotImplemented")),
        ("attributes", (501, "NotImplemented")),
        ("response-content-type=text/html", (501, "NotImplemented")),
    ],
)  # fmt: skip
def test_parameters_of_a_read(world: World, query: str, expected: tuple[int, str]) -> None:
    answer = world.ann.call("GET", "/ann/tiny/config.json", query)
    if expected[0] == 200:
        assert answer.body == FILES["config.json"]
    else:
        assert code_of(answer) == expected


def test_an_uploaded_page_is_never_run_by_a_browser(world: World) -> None:
    headers = world.ann.get("ann", f"tiny/{ODD[0]}").headers
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Disposition"] == "attachment"


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/ann", "/ann/tiny/config.json"])
def test_writing_is_refused_with_what_to_do(world: World, method: str, path: str) -> None:
    for body in (b"", b"<x/>", bytes(3 << 20)):
        if len(body) > 10 and method != "PUT":
            continue
        try:
            answer = world.ann.call(method, path, body=body)
        except (BrokenPipeError, ConnectionResetError):
            assert len(body) > 10  # the hub does not read what it refuses
            continue
        assert code_of(answer) == (405, "MethodNotAllowed")
        if method != "OPTIONS":
            assert "`deltahub push`" in sentence_of(answer)
    assert world.ann.get("ann", "tiny/config.json").body == FILES["config.json"]
    unsigned = world.ann.guests.call(method, path)
    assert code_of(unsigned) == (405, "MethodNotAllowed")

"""Lists are those of S3: compared with a list that is made of all keys, the slow way."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.s3.door import code_of
from support.s3.world import FILES, World

KEYS = sorted(
    [f"tiny/{path}" for path in FILES]
    + [
        f"{name}/{path}"
        for name in ("tiny-2", "tiny.x", "Upper", "secret")
        for path in ("a.txt", "b/c.txt")
    ]
)


def expected(keys: list[str], prefix: str, delimiter: str, after: str) -> list[str]:
    """What S3 lists: keys and folders in their order."""
    found: dict[str, None] = {}
    for key in keys:
        if key.startswith(prefix) and key > after:
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            found[key if cut < 0 else key[: cut + 1]] = None
    return list(found)


def listed(world: World, **asked: object) -> Iterator[list[str]]:
    """The keys and folders of each page, in their order."""
    for page in world.ann.pages("ann", **asked):
        yield sorted(page.keys + page.folders)


parts = st.sampled_from(
    [
        "", "t", "ti", "tiny", "tiny-", "tiny/", "tiny/d", "tiny/d/", "tiny/d/é", "tiny.x/b",
        "Upper/", "secret", "secret/b/", "x", "T", "tiny/config.json", "tiny/zzz", "~", "\x01",
        "tiny/d/日", "TINY",
    ]
)  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prefix=parts, delimiter=st.sampled_from(["", "/"]), size=st.integers(1, 9),
    version=st.sampled_from([1, 2]), data=st.data(),
)  # fmt: skip
def test_all_pages_together_are_the_list(
    world: World, prefix: str, delimiter: str, size: int, version: int, data: st.DataObject
) -> None:
    asked = {"prefix": prefix, "delimiter": delimiter, "list_type": version, "max_keys": size}
    after = data.draw(st.one_of(st.just(""), st.sampled_from(KEYS)))
    if after:
        asked["start_after" if version == 2 else "marker"] = after
    asked = {name: value for name, value in asked.items() if value != ""}
    pages = list(listed(world, **asked))
    assert all(len(page) <= size for page in pages)
    assert [item for page in pages for item in page] == expected(KEYS, prefix, delimiter, after)


def test_a_list_says_what_it_knows_of_an_object(world: World) -> None:
    page = world.ann.list("ann", list_type=2, prefix="tiny/model")
    (found,) = page.objects
    head = world.ann.call("HEAD", "/ann/tiny/model.safetensors")
    assert found["ETag"] == head.headers["ETag"]
    assert found["Size"] == head.headers["Content-Length"]
    assert found["LastModified"].endswith(".000Z")
    assert (page.text("KeyCount"), page.text("IsTruncated")) == ("1", "false")
    assert (page.text("Name"), page.text("MaxKeys")) == ("ann", "1000")


def test_keys_are_escaped_where_that_is_asked_for(world: World) -> None:
    page = world.ann.list("ann", list_type=2, prefix="tiny/d/a b+", encoding_type="url")
    assert page.keys == ["tiny/d/a%20b%2Bc%252F.txt"]
    assert page.text("Prefix") == "tiny/d/a%20b%2B"


def test_files_of_a_revision_are_listed_below_its_name(world: World) -> None:
    first = ["config.json", "old.txt"]
    for revision in ("v1", world.first, "refs/tags/v1"):
        page = world.ann.list("ann", prefix=f"tiny@{revision}/")
        assert page.keys == [f"tiny@{revision}/{path}" for path in first]
    page = world.ann.list("ann", prefix="tiny@dev/x/", delimiter="/")
    assert "tiny@dev/x/branch.txt" in page.keys
    assert page.folders == ["tiny@dev/x/d/"]
    assert world.ann.list("ann", prefix="tiny@v1", delimiter="/").folders == ["tiny@v1/"]
    assert world.ann.list("ann", prefix="tiny@v1").keys == [f"tiny@v1/{path}" for path in first]
    pages = list(world.ann.pages("ann", prefix="tiny@v1/", list_type=2, max_keys=1))
    assert [page.keys for page in pages] == [["tiny@v1/config.json"], ["tiny@v1/old.txt"]]
    for absent in ("tiny@no/", "nothing/", "tiny@", "@", "tiny/\0", "..//", "tiny@v1/x\0"):
        assert world.ann.list("ann", prefix=absent).keys == []


def test_names_are_spelt_as_they_were_asked_for(world: World) -> None:
    page = world.ann.list("ANN", prefix="TINY/c")
    assert page.keys == ["TINY/config.json"]
    assert page.text("Name") == "ANN"


def test_a_page_that_would_read_too_many_models_goes_on_with_the_next(world: World) -> None:
    hub = world.hub
    token = hub.user("many")
    names = [f"m{number:03}" for number in range(120)]
    for name in names:
        hub.create(f"many/{name}", token=token)
    for name in names[::2]:
        hub.commit(f"many/{name}", {"a.txt": b"a"}, token)
    door = world.ann.by(hub, token)
    pages = list(door.pages("many", list_type=2))
    assert len(pages) > 1
    assert [key for page in pages for key in page.keys] == [f"{name}/a.txt" for name in names[::2]]
    (folders,) = door.pages("many", list_type=2, delimiter="/")
    assert folders.folders == [f"{name}/" for name in names[::2]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("list-type=3", (400, "InvalidArgument")), ("max-keys=-1", (400, "InvalidArgument")),
        ("max-keys=x", (400, "InvalidArgument")), ("delimiter=a", (501, "NotImplemented")),
        ("encoding-type=gzip", (400, "InvalidArgument")), ("acl", (501, "NotImplemented")),
        ("versions", (501, "NotImplemented")), ("uploads", (501, "NotImplemented")),
        ("list-type=2&continuation-token=%21", (400, "InvalidArgument")),
        ("list-type=2&continuation-token=%C3%A9", (400, "InvalidArgument")),
        ("list-type=2&continuation-token=gICA", (400, "InvalidArgument")),
    ],
)  # fmt: skip
def test_a_wrong_question_is_refused(world: World, query: str, expected: tuple[int, str]) -> None:
    assert code_of(world.ann.call("GET", "/ann", query)) == expected


def test_no_keys_are_none(world: World) -> None:
    page = world.ann.list("ann", list_type=2, max_keys=0)
    assert (page.keys, page.text("IsTruncated"), page.text("KeyCount")) == ([], "false", "0")
    assert world.ann.list("ann", list_type=2, max_keys=5000).text("MaxKeys") == "1000"


def test_where_a_bucket_is(world: World) -> None:
    assert b"LocationConstraint" in world.ann.call("GET", "/ann", "location").body
    assert b"VersioningConfiguration" in world.ann.call("GET", "/ann", "versioning").body
    assert world.ann.call("HEAD", "/ann/").headers["x-amz-bucket-region"] == "us-east-1"
    assert world.ann.call("HEAD", "/nobody").status == 404
    for query in ("location", "list-type=2", "list-type=2&max-keys=0", "versioning"):
        assert code_of(world.ann.call("GET", "/nobody", query)) == (404, "NoSuchBucket")

"""A .gitignore excludes the files that git excludes, in limited time."""

import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.server.hf.writing.gitignore import MAX_IGNORE_BYTES, IgnoreLimit, parse_ignore
from support.service.hf_door import create_model, error_of, header, send_commit, small
from support.service.hub import Answer, RunningHub

# The server sets the same filter, but pytest resets filters.
pytestmark = pytest.mark.filterwarnings("ignore:Possible:FutureWarning")

QUICK_S = 10  # without limits the cases take minutes, and longer for each added character

# Excluded | kept, checked with `git check-ignore --no-index`. docs/hugging-face.md lists the
# differences of pathspec.
CASES = {
    "a": "a deep/a a/b deep/a/b | ab A b",
    "/a": "a a/b | deep/a",
    "a/": "a/b deep/a/b | a deep/a",
    "a/b": "a/b a/b/c | deep/a/b b",
    "deep/": "deep/a | deep",
    "*.tmp": "x.tmp .tmp a/x.tmp x.tmp/y | x.tmpl",
    "a*b*c": "abc aXbYc abcbc | ab acb abcd",
    "*": "a a/b",
    "**": "a a/b",
    "/*": "a a/b",
    "**/a": "a b/a b/c/a | ab",
    "a/**": "a/b a/b/c | a b/a/c",
    "a/**/b": "a/b a/x/b a/x/y/b | ab a/bx",
    "a/**/b/**/c": "a/b/c a/x/b/y/z/c a/b/b/c | a/c a/b",
    "**/": "a/b | a",
    "a**b": "ab axb | a/b",
    "?": "a a/bb ä | bb",
    "a?c": "abc | ac a/c",
    "[ab]x": "ax bx | cx abx",
    "[!ab]x": "cx | ax x",
    "[^ab]x": "cx | ax",
    "[a-c]x": "ax cx | dx -x",
    "[a-]x": "ax -x | bx",
    "[]a]x": "ax ]x | bx",
    "[[:]a]": "[a] :a] | a",
    "[z-a]": "| a -",
    "[[:none:]]": "| a n :",
    "a[": "| a a[",
    "a\\": "| a",
    "\\": "| a",
    "\\*": "* | a",
    "\\#a": "#a | a",
    "\\!a": "!a | a",
    "#a": "| a #a",
    "a[b/]c": "| x/abc a/c",
    "a\r\nb\r\n": "a b",
    "a ": "a",
    "\ufeffa": "a",
    "*\n!a": "b | a",
    "x/\n!x/a": "x/b",
    "x/*\n!x/a": "x/b | x/a x/a/b",
    "a\n!a\na": "a",
    "*.bin\n!/keep.bin": "a.bin deep/keep.bin | keep.bin",
    "": "| a",
    "/": "| a a/b",
    "//": "| a a/b",
    "!": "| a",
}


@pytest.mark.parametrize("text", CASES)
def test_what_git_leaves_out_is_left_out(text: str) -> None:
    out, _, kept = CASES[text].partition("|")
    ignore = parse_ignore(text)
    for path in out.split():
        assert ignore.is_ignored(path), path
    for path in kept.split():
        assert not ignore.is_ignored(path), path


_PATHS = st.lists(st.text("abc-*", min_size=1, max_size=4), min_size=1, max_size=4).map("/".join)


@given(st.text() | st.text("ab*?/[]!-^\\ \n#&~|:"), _PATHS)
@settings(max_examples=400)
def test_no_text_breaks_the_reader(text: str, path: str) -> None:
    with suppress(IgnoreLimit):
        parse_ignore(text).is_ignored(path)


LONG = ["a" * 255 + "/" + "a" * 255 + f"/{i}" + "a" * 250 for i in range(1000)]
DEEP = [f"{i}/" + "a/" * 500 + "c" for i in range(1000)]
COSTLY = {
    "stars": ("*a" * 7 + "*b", LONG),
    "lines of stars": ("\n".join(["*a*a*b"] * 1000), LONG),
    "any": ("\n".join(["*" + "?" * 50 + "x*"] * 1000), LONG),
    "classes": ("*[!b]" * 7, LONG),
    "wide classes": ("\n".join(f"[{chr(256 + i)}-\U0010ff00]" for i in range(300)), LONG),
    "folders": ("**/a/" * 7 + "b", DEEP),
    "lines of folders": ("\n".join(["**/a/**/b"] * 1000), DEEP),
    "names": ("\n".join(map(str, range(1000, 2000))), DEEP),
}


@pytest.mark.parametrize("kind", COSTLY)
def test_patterns_cannot_take_long(kind: str) -> None:
    text, paths = COSTLY[kind]
    begin = time.monotonic()
    with suppress(IgnoreLimit):
        ignore = parse_ignore(text)
        for path in paths:
            ignore.is_ignored(path)
    assert time.monotonic() - begin < QUICK_S


def test_there_are_not_too_many_patterns() -> None:
    assert not parse_ignore("#\n" * 5000 + "a\n" * 1000).is_ignored("b")
    with pytest.raises(IgnoreLimit, match="1000 patterns"):
        parse_ignore("a\n" * 1001)
    with pytest.raises(IgnoreLimit, match="64 KiB"):
        parse_ignore("a" * (MAX_IGNORE_BYTES + 1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a" * 1025, "1024 characters"),
        ("*a" * 9, "8 stars"),
        ("**/" * 9 + "a", "8 stars"),
        ("[a]\n" * 301, "300 classes"),
    ],
)
def test_a_pattern_has_limits(text: str, words: str) -> None:
    with pytest.raises(IgnoreLimit, match=words):
        parse_ignore(text)


def test_stars_and_long_paths_together_have_a_limit() -> None:
    parse_ignore("*a*b*c*").is_ignored("model-00001-of-00002.safetensors")
    with pytest.raises(IgnoreLimit, match="too many stars for a path that long"):
        parse_ignore("*a*b*c*").is_ignored("a" * 250)
    ignore = parse_ignore("*a*b\n" * 1000)
    with pytest.raises(IgnoreLimit, match="send fewer at once"):
        _ = [ignore.is_ignored(path) for path in LONG]


def test_a_usual_upload_is_far_from_the_limits() -> None:
    lines = "*.py[cod]\n*$py.class\n__pycache__/\nbuild/\n*.so\n.env\n[Bb]in/\n" * 40
    ignore = parse_ignore(lines)
    paths = [f"part{i % 40}/sub/model-{i:05}-of-01000.safetensors" for i in range(1000)]
    assert not any(ignore.is_ignored(path) for path in paths)


def preupload(hub: RunningHub, name: str, paths: list[str], ignore: str | None) -> Answer:
    body = {"files": [{"path": path, "size": 1} for path in paths]}
    if ignore is not None:
        body["gitIgnore"] = ignore  # type: ignore[assignment]  # a mapping of all kinds
    path = f"/api/models/{name}/preupload/main"
    return hub.call("POST", path, token=hub.admin_token, body=body)


def test_an_upload_with_costly_patterns_is_answered_at_once(hub: RunningHub) -> None:
    name = "admin/ignoring"
    create_model(hub, name)
    begin = time.monotonic()
    answer = preupload(hub, name, ["a" * 250], "*a*b")
    assert answer.json()["files"][0]["shouldIgnore"] is False
    assert time.monotonic() - begin < QUICK_S
    assert preupload(hub, name, ["a", "z"], "[z-a]\n\\").status == 200
    for ignore, words in (
        ("a\n" * 1001, "1000 patterns"),
        ("a" * 70_000, "64 KiB"),
        ("*a" * 100, "8 stars"),
        ("*a" * 8, "too many stars"),
    ):
        answer = preupload(hub, name, ["a" * 250], ignore)
        assert error_of(answer) == (413, "limit_exceeded")
        assert words in answer.headers["X-Error-Message"]
    # The branch's own .gitignore exceeds the limit too; sending another one is the way out.
    send_commit(hub, name, header(), small(".gitignore", b"# a\n" * 20_000))
    answer = preupload(hub, name, ["a"], None)
    assert error_of(answer) == (413, "limit_exceeded")
    answer = preupload(hub, name, ["a", ".gitignore"], "*")
    assert [file["shouldIgnore"] for file in answer.json()["files"]] == [True, False]

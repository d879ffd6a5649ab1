"""A .gitignore leaves out what git leaves out, and takes no time that its author could stretch."""

import time
from contextlib import suppress

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from deltahub.server.hf.ignoring import MAX_IGNORE_BYTES, IgnoreLimit, parse_ignore
from support.hf_door import create_model, error_of, header, send_commit, small
from support.hub import Answer, RunningHub

QUICK_S = 10  # these took minutes, and more for each character

# Left out | kept. Each of them as `git check-ignore --no-index` has it.
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
    "[[:digit:][:upper:]]": "1 A | a :",
    "[[:]a]": "[a] :a] | a",
    "[z-a]": "z | a -",
    "[!z-a]": "a - | z",
    "[[:none:]]": "| a n :",
    "a[": "| a a[",
    "a\\": "| a",
    "\\": "| a",
    "\\*": "* | a",
    "\\#a": "#a | a",
    "\\!a": "!a | a",
    "#a": "| a #a",
    "a[b/]c": "abc | x/abc a/c",
    "a\r\nb\r\n": "a b",
    "a ": "a",
    "\ufeffa": "a",
    "*\n!a": "b b/a | a",
    "x/\n!x/a": "x/a x/b",
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


# Without [!a], which that reader lets stand for a slash, and without a part ".".
_TOKENS = st.sampled_from(
    ["a", "b", "c", "-", "*", "?", "/", "/**/", "**/", "/**", "[ab]", "[a-c]", "\\*", "\\a"]
)
_PATTERNS = st.lists(_TOKENS, min_size=1, max_size=7).map("".join)
_PATHS = st.lists(st.text("abc-*", min_size=1, max_size=4), min_size=1, max_size=4).map("/".join)


@given(st.lists(_PATTERNS, min_size=1, max_size=4), st.lists(_PATHS, min_size=1, max_size=20))
@settings(max_examples=400)
@example(["a*a*b"], ["aaab", "aaa"])
def test_another_reader_of_patterns_agrees(lines: list[str], paths: list[str]) -> None:
    # What it has otherwise than git: empty parts, stars beside two stars, folders below `**`.
    assume(not any("//" in line or "***" in line or line.startswith("/**") for line in lines))
    assume(not any(one in line for line in lines for one in ("a**", "b**", "c**", "***")))
    assume(not any(line.endswith("**/") for line in lines))
    spec = GitIgnoreSpec.from_lines(lines)
    ignore = parse_ignore("\n".join(lines))
    for path in paths:
        assert ignore.is_ignored(path) == spec.match_file(path), path


@given(st.text(), _PATHS)
@settings(max_examples=200)
def test_no_text_breaks_the_reader(text: str, path: str) -> None:
    parse_ignore(text).is_ignored(path)


LONG = ["a" * 255 + "/" + "a" * 255 + f"/{i}" + "a" * 250 for i in range(1000)]
DEEP = [f"{i}/" + "a/" * 500 + "c" for i in range(1000)]
COSTLY = {
    "stars": ("*a" * 30_000 + "*b", LONG),
    "lines of stars": ("\n".join(["*a" * 30 + "*b"] * 1000), LONG),
    "any": ("\n".join(["*" + "?" * 50 + "x*"] * 1000), LONG),
    "classes": ("*" + "[a]" * 20_000 + "*", LONG),
    "wide classes": ("[" + "\u4e00-\u9fff" * 10_000 + "]*", LONG),
    "open classes": ("*[[:" * 16_000, LONG),
    "folders": ("**/a" * 10_000 + "/b", DEEP),
    "names": ("\n".join(map(str, range(1000, 2000))), DEEP),
}


@pytest.mark.parametrize("kind", COSTLY)
def test_patterns_cannot_take_long(kind: str) -> None:
    text, paths = COSTLY[kind]
    begin = time.monotonic()
    with suppress(IgnoreLimit):
        ignore = parse_ignore(text)
        assert not any(ignore.is_ignored(path) for path in paths)
    assert time.monotonic() - begin < QUICK_S


def test_there_are_not_too_many_patterns() -> None:
    assert not parse_ignore("#\n" * 5000 + "a\n" * 1000).is_ignored("b")
    with pytest.raises(IgnoreLimit, match="1000 patterns"):
        parse_ignore("a\n" * 1001)
    with pytest.raises(IgnoreLimit, match="64 KiB"):
        parse_ignore("a" * (MAX_IGNORE_BYTES + 1))


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
    answer = preupload(hub, name, ["a" * 250], "*a" * 100 + "*b")
    assert answer.json()["files"][0]["shouldIgnore"] is False
    assert time.monotonic() - begin < QUICK_S
    assert preupload(hub, name, ["a", "z"], "[z-a]\n\\").status == 200
    for ignore, words in (("a\n" * 1001, "1000 patterns"), ("a" * 70_000, "64 KiB")):
        answer = preupload(hub, name, ["a"], ignore)
        assert error_of(answer) == (413, "limit_exceeded")
        assert words in answer.headers["X-Error-Message"]
    # One that the branch has is not passed over; sending another is the way out.
    send_commit(hub, name, header(), small(".gitignore", b"# a\n" * 20_000))
    answer = preupload(hub, name, ["a"], None)
    assert error_of(answer) == (413, "limit_exceeded")
    answer = preupload(hub, name, ["a", ".gitignore"], "*")
    assert [file["shouldIgnore"] for file in answer.json()["files"]] == [True, False]

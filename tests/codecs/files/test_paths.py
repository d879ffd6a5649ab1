"""The rule for paths, which the hub and its clients share: every case of docs/paths.md."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltahub.codecs.files.paths import (
    MAX_PART_BYTES,
    MAX_PATH_BYTES,
    RESERVED_PARTS,
    path_problem,
    tree_problem,
    twins,
)

REFUSED = {
    "is empty": [""],
    "the limit is 1024": ["/".join(["x" * 200] * 6), "y" * 10_000],
    "more than 255 bytes": ["x" * 256, "é" * 128, f"a/{'x' * 256}/b"],
    "not valid Unicode": ["\ud800", "a/\udcff"],
    "begins with a slash": ["/a", "//a", "/etc/passwd"],
    "backslash": ["a\\b", ".git\\config", "..\\x", "C:\\x", "\\\\host\\share"],
    "control character": ["a\0b", "a\nb", "a\x1b[2Jb", "a\x7f", "a\x85b", "a\u2028b", "a\u2029b"],
    "invisible character": [
        "a\u202eb", "a\u2066b", "a\u200fb", "a\u061cb", "a\u200bb", "a\u2060b", "a\ufeffb",
        "con\u00adfig.json", ".g\u200bit/config", "a\U000e0041b", "\u3164",
    ],
    "empty part": ["a//b", "a/", "a/b//"],
    "the part . or ..": [".", "..", "../x", "a/../b", "a/..", "./a", "a/./b"],
    "version control": [
        ".git", ".git/config", "a/.GIT/b", ".Git", "a/.git", ".git/hooks/post-checkout",
        # HFS+ does not see joiners; Windows drops dots and spaces at the end.
        ".g\u200cit/config", ".\u200dgit/x", "\u200c.git", ".git./config", ".git /x", ".git . /x",
        ".git...", "git~1/config", "GIT~1", "git~2", "gi7eba~1", ".\uff27\uff29\uff34/config",
        ".hg/hgrc", ".HG", "hg~1", ".svn/wc.db", ".jj/repo/config.toml", ".bzr",
        ".cache/x", "a/.cache", "cache~1", "svn~1",
    ],
    "which Windows allows in no name": [
        "a:b", ".git::$INDEX_ALLOCATION/config", "a::$DATA", "C:x", "a<b", "a>b", 'a"b', "a|b",
        "a?", "*", "x/a:b/y",
    ],
    "ends with a dot or a space": ["a.", "a ", "a/b. ", "...", "x./y", " ", "a .", "con. "],
    "a device": [
        "con", "CON", "nul", "aux.txt", "a/prn", "Nul.tar.gz", "com1", "COM0", "lpt9.x", "com¹",
        "conin$", "CONOUT$", "aux .txt", "con.c/x",
    ],
}  # fmt: skip

ORDINARY = [
    "a", ".gitattributes", ".gitignore", ".github/workflows/ci.yml", "a b/c d.txt", " a", "~",
    "模型/权重.safetensors", "x" * 255, "...a", "a..b", ".a", "-rf", "console", "conf", "auxiliary",
    "nullable.py", "com10", "comma", "git", "git~", "git~x", "agit~1", "cache", "hg", "x.git",
    "model-00001-of-00002.safetensors", "a&b=c;d,e'f(g)[h]{i}#j%k+l!m@n^o`p$q", "naïve/é.json",
    "\u0646\u0627\u0645\u0647\u200c\u0647\u0627.txt", "👩\u200d🔬.png", "❤\ufe0f.txt",
    "葛\U000e0100.txt",
    "refs/heads", "HEAD", "/".join(["x" * 204] * 5), "\uff11\uff12.txt", "what\uff1f.txt",
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "problem"), [(path, problem) for problem, paths in REFUSED.items() for path in paths]
)
def test_a_path_that_some_pull_could_not_write_safely_is_refused_with_the_reason(
    path: str, problem: str
) -> None:
    found = path_problem(path)
    assert found is not None
    assert problem in found
    assert len(found) < 600


@pytest.mark.parametrize("path", ORDINARY)
def test_an_ordinary_path_is_allowed(path: str) -> None:
    assert path_problem(path) is None


@given(st.text("aG.it~1/\\ :é\n\x85\u200c\u202e\ud800", max_size=8) | st.text(max_size=6))
@example("é" * (MAX_PART_BYTES // 2) + "a")
def test_an_allowed_path_stays_below_its_folder_and_is_seen_as_it_is(path: str) -> None:
    if path_problem(path) is not None:
        return
    parts = path.split("/")
    assert len(path.encode()) <= MAX_PATH_BYTES
    assert all(part and part.strip(". ") for part in parts)
    assert not any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in path)
    for part in parts:
        name = unicodedata.normalize("NFD", part).casefold().rstrip(". ")
        assert name not in RESERVED_PARTS
        assert name.split(":")[0] not in RESERVED_PARTS


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)))
def test_a_tree_is_refused_exactly_when_a_file_is_also_a_folder(paths: list[str]) -> None:
    clash = any(one.startswith(other + "/") for one in paths for other in paths)
    assert (tree_problem(paths) is not None) == clash


@pytest.mark.parametrize(
    "paths",
    [
        ["HEAD", "config", "objects/x", "refs/x"],
        ["head", "Config", "OBJECTS/a/b", "Refs/x"],
        ["sub/HEAD", "sub/config", "sub/objects/x", "sub/refs/heads/main"],
        ["HEAD", "commondir", "config", "other/objects/x", "other/refs/x"],
    ],
)
def test_a_tree_that_git_takes_for_a_repository_is_refused(paths: list[str]) -> None:
    assert "look like a git repository" in str(tree_problem(paths))


@pytest.mark.parametrize(
    "paths",
    [
        ["HEAD", "config", "refs/x"],
        ["HEAD", "a/objects/x", "refs/x"],
        ["config", "objects/x", "refs/x"],
        ["HEAD.txt", "objects/x", "refs/x"],
        ["README.md", "readme.md"],
    ],
)
def test_a_tree_that_only_resembles_one_is_allowed(paths: list[str]) -> None:
    assert tree_problem(paths) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("README.md", "readme.md"), ("a/b", "A/b"), ("é", "e\u0301"), ("straße", "STRASSE"),
        ("ﬁ", "fi"), ("a\u200cb", "ab"), ("K", "\u212a"), ("A", "a/b"), ("x/É", "x/e\u0301/y"),
    ],
)  # fmt: skip
def test_paths_that_some_file_system_takes_for_one_are_twins(one: str, other: str) -> None:
    assert [set(pair) for pair in twins([one, "z", other])] == [{one, other}]


def test_paths_that_every_file_system_keeps_apart_are_no_twins() -> None:
    assert twins(["a", "b", "a_b", "A.txt", "a.txt.bak", "x/y", "x/z"]) == []

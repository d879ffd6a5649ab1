"""Valid paths and trees of a revision, and the mode of a path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltahub.registry.catalog.commit import entry_mode, validate_path
from deltahub.registry.errors import InvalidPath
from deltahub.registry.names import LFS_BYTES, validate_tree


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "empty"), ("/a", "begins with a slash"), ("a//b", "empty part"), ("a/", "empty part"),
        (".", "part ."), ("a/../b", r"\.\."), ("..", r"\.\."), ("a\\b", "backslash"),
        ("a\0b", "control"), ("a\nb", "control"), ("a\x7f", "control"), ("a\x85b", "control"),
        ("a\u2028b", "control"), ("\ud800", "Unicode"), ("x" * 256, "more than 255 bytes"),
        ("é" * 128, "more than 255 bytes"), ("/".join(["x" * 200] * 6), "1205 bytes; the limit"),
        (".git/config", ".git"), ("a/.GIT/b", ".git"), (".cache/x", ".cache"),
        ("y" * 10_000, "10000 bytes"),
    ],
)  # fmt: skip
def test_a_path_that_cannot_be_one_is_refused_with_the_reason(path: str, problem: str) -> None:
    with pytest.raises(InvalidPath, match=problem) as raised:
        validate_path(path)
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize(
    "path", ["a", ".gitattributes", "a b/c d.txt", "模型/权重.safetensors", "...", "x" * 255, "~"]
)
def test_an_ordinary_path_is_taken_as_it_is(path: str) -> None:
    assert validate_path(path) == path


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)))
def test_a_tree_is_refused_exactly_when_a_file_is_also_a_folder(paths: list[str]) -> None:
    clash = any(one.startswith(other + "/") for one in paths for other in paths)
    if clash:
        with pytest.raises(InvalidPath):
            validate_tree(paths)
    else:
        validate_tree(paths)


@pytest.mark.parametrize(
    ("path", "size", "mode"),
    [
        ("model.safetensors", 1, "lfs"), ("pytorch_model.bin", 0, "lfs"), ("a/b.gguf", 5, "lfs"),
        ("x.tar.gz", 1, "lfs"), ("x.tar.custom", 1, "lfs"), ("events.out.tfevents.1", 1, "lfs"),
        ("saved_model/assets/x.txt", 1, "lfs"), ("tokenizer.model", 1, "lfs"),
        ("config.json", LFS_BYTES - 1, "regular"), ("config.json", LFS_BYTES, "lfs"),
        ("README.md", 0, "regular"), ("bin", 1, "regular"), ("model.safetensors.index.json", 9,
        "regular"), (".gitattributes", 1, "regular"),
    ],
)  # fmt: skip
def test_the_mode_follows_from_the_name_and_the_size(path: str, size: int, mode: str) -> None:
    assert entry_mode(path, size) == mode

"""Valid paths and trees of a revision, and the mode of a path."""

import pytest

from deltahub.registry.catalog.commit import entry_mode, validate_path
from deltahub.registry.errors import InvalidName, InvalidPath
from deltahub.registry.names import LFS_BYTES, validate_ref, validate_tree


def test_a_path_that_cannot_be_one_is_refused_with_the_reason() -> None:
    for path, problem in ((".git/config", "version control"), ("y" * 10_000, "10000 bytes")):
        with pytest.raises(InvalidPath, match=problem) as raised:
            validate_path(path)
        assert len(str(raised.value)) < 600
    assert validate_path("模型/权重.safetensors") == "模型/权重.safetensors"
    with pytest.raises(InvalidPath, match="the limit is 3"):
        validate_path("a/bc", 3)


@pytest.mark.parametrize("paths", [["a", "a/b"], ["HEAD", "config", "objects/x", "refs/x"]])
def test_a_tree_that_no_folder_could_hold_safely_is_refused(paths: list[str]) -> None:
    with pytest.raises(InvalidPath):
        validate_tree(paths)


@pytest.mark.parametrize("name", ["con", "a/nul", "x/aux.txt", "com1", "v1./x", ".git", "a/.b "])
def test_a_ref_of_which_clients_could_keep_no_file_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="cannot name a branch"):
        validate_ref(name)


@pytest.mark.parametrize(
    ("path", "size", "mode"),
    [
        ("model.safetensors", 1, "lfs"), ("x.bin", 0, "regular"), ("a/b.gguf", 5, "lfs"),
        ("x.tar.gz", 1, "lfs"), ("x.tar.custom", 1, "lfs"), ("events.out.tfevents.1", 1, "lfs"),
        ("saved_model/assets/x.txt", 1, "lfs"), ("tokenizer.model", 1, "lfs"),
        ("config.json", LFS_BYTES - 1, "regular"), ("config.json", LFS_BYTES, "lfs"),
        ("README.md", 0, "regular"), ("bin", 1, "regular"), ("model.safetensors.index.json", 9,
        "regular"), (".gitattributes", 1, "regular"),
    ],
)  # fmt: skip
def test_the_mode_follows_from_the_name_and_the_size(path: str, size: int, mode: str) -> None:
    assert entry_mode(path, size) == mode

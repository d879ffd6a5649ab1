"""The cache layout, as the real huggingface_hub library reads it."""

from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir, try_to_load_from_cache

from deltahub.client.errors import BadResponse
from deltahub.client.local.hf_cache import RepositoryCache, checked_path, hf_cache_folder

COMMIT = "a" * 40


def test_what_is_linked_is_found_by_huggingface_hub(tmp_path: Path) -> None:
    cache = RepositoryCache("org/model", tmp_path / "hf")
    blob = cache.blob("e" * 64)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"weights")
    cache.link(COMMIT, "sub/folder/model.safetensors", "e" * 64)
    cache.set_ref("main", COMMIT)
    cache.set_ref("refs/pr/1", COMMIT)

    for revision in ("main", COMMIT, "refs/pr/1"):
        found = try_to_load_from_cache(
            "org/model",
            "sub/folder/model.safetensors",
            cache_dir=tmp_path / "hf",
            revision=revision,
        )
        assert isinstance(found, str)
        assert Path(found).read_bytes() == b"weights"
    assert Path(found).readlink() == Path("../../../../blobs") / ("e" * 64)
    report = scan_cache_dir(tmp_path / "hf")
    assert not report.warnings
    assert report.size_on_disk == 7


def test_linking_twice_and_moving_a_ref_leaves_one_of_each(tmp_path: Path) -> None:
    cache = RepositoryCache("org/model", tmp_path)
    for etag in ("e1" * 20, "e2" * 20):
        cache.link(COMMIT, "config.json", etag)
        cache.set_ref("main", etag)
    folder = cache.snapshot(COMMIT)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert (folder / "config.json").readlink().name == "e2" * 20
    assert (cache.root / "refs" / "main").read_text() == "e2" * 20


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a/./b", "a\0b", "..", "a\\b", ""])
def test_a_path_that_leaves_its_folder_is_refused(path: str) -> None:
    with pytest.raises(BadResponse, match="the hub named a file"):
        checked_path(path)


@pytest.mark.parametrize("etag", ["../x", "a/b", "", "e1", "\u0661" * 40, "E" * 40])
def test_an_etag_that_is_no_hash_is_refused(tmp_path: Path, etag: str) -> None:
    with pytest.raises(BadResponse):
        RepositoryCache("org/model", tmp_path).blob(etag)


def test_the_environment_says_where_the_cache_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "x"))
    assert hf_cache_folder() == tmp_path / "x"
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "y"))
    assert hf_cache_folder() == tmp_path / "y" / "hub"
    monkeypatch.delenv("HF_HOME")
    assert hf_cache_folder() == Path.home() / ".cache" / "huggingface" / "hub"

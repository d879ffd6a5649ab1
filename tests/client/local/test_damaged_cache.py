"""Files of the Hugging Face cache that changed since they were pulled there."""

import os
from pathlib import Path

import pytest

from deltahub.client import Hub
from support.models.model_folders import base_tensors, contents, write_model


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "base", base_tensors())


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_damaged_file_of_the_cache_is_fetched_anew(
    hub: Hub, name: str, base_folder: Path, file: str
) -> None:
    hub.push(base_folder, name)
    pulled = hub.pull(name)
    data = bytearray((pulled / file).read_bytes())
    data[-9] ^= 1
    (pulled / file).resolve().write_bytes(data)
    again = hub.pull_with_report(name)
    assert again.fetched_files == (file,)
    assert contents(pulled) == contents(base_folder)
    assert hub.pull_with_report(name).fetched_files == ()


def test_a_file_of_the_cache_that_only_was_touched_is_kept(
    hub: Hub, name: str, base_folder: Path
) -> None:
    hub.push(base_folder, name)
    for file in hub.pull(name).iterdir():
        os.utime(file, ns=(1, 1))
    assert hub.pull_with_report(name).fetched_files == ()

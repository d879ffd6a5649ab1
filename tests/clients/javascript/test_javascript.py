"""Unmodified clients in JavaScript, from npm: @huggingface/hub and @huggingface/transformers."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import Library, World
from clients.javascript import npm


@pytest.fixture(scope="session")
def scripts() -> Path:
    return npm.make()


def run(scripts: Path, script: str, *arguments: str) -> Any:
    """What a script prints last."""
    done = subprocess.run(
        [npm.node(), script, *arguments],
        cwd=scripts,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.rpartition("RESULT ")[2])


def test_a_model_lives_from_its_creation_to_its_end(
    scripts: Path, world: World, tmp_path: Path
) -> None:
    found = run(scripts, "hub.mjs", world.hub.url, world.bob, "bob", str(tmp_path))
    name, url = "bob/Java-Script", world.hub.url
    assert found["who"] == ["user", "bob"]
    assert found["made"] == f"{url}/{name}"
    status, sentence = found["again"]
    assert (status, f"{name} exists already" in sentence) == (409, True)
    assert found["commit"].startswith(f"{url}/{name}/commit/")
    files = {path: (kind, size, is_lfs) for kind, path, size, is_lfs, _ in found["files"]}
    assert files.pop(".gitattributes")[0] == "file"
    assert files == {
        "a": ("directory", 0, False),
        "a/b.txt": ("file", 1, False),
        "config.json": ("file", 19, False),
        "deep": ("directory", 0, False),
        "deep/w.bin": ("file", 1_500_000, True),
        "o.bin": ("file", 900_000, True),
    }
    assert all(has_commit for *_, has_commit in found["files"])
    assert found["paths"] == [["deep/w.bin", 1_500_000, True]]
    assert found["exists"] == [True, False]
    assert found["info"] == [1_500_000, True]
    assert found["downloads"] == [True, True]
    assert f"oid sha256:{found['pointer']}\nsize 900000\n" in found["raw"]
    assert found["model"] == [name, True, "bob", 40]
    assert found["models"] == [[name, 5]]
    assert found["commits"] == ["both at once", "Add o.bin", "Add 3 files", "initial commit"]
    assert found["count"] == 4
    assert found["repos"] == [True, False]
    assert found["snapshot"] == [".gitattributes", "a", "config.json", "deep", "o.bin"]
    status, sentence = found["pullRequest"]
    assert (status, "commit to a branch" in sentence) == (501, True)
    assert "a/b.txt" not in found["left"]
    assert found["gone"] is False


def test_transformers_loads_a_configuration_and_a_tokenizer(
    scripts: Path, world: World, library: Library, tmp_path: Path
) -> None:
    url = world.hub.url
    found = run(scripts, "transformers.mjs", url, "alice/tiny", str(tmp_path))
    assert found["kind"] == json.loads(library.tiny["config.json"])["model_type"]
    assert found["tokens"]
    assert found["missing"] is not None

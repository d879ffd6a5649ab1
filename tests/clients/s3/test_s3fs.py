"""s3fs walks through the hub and reads from it, as pandas, DuckDB's Python and others do."""

from hashlib import sha256
from typing import Any

from clients.conftest import Library
from clients.machine import Machine

WALK = """
import hashlib
import s3fs
fs = s3fs.S3FileSystem(anon=anonymous)
def file_hash(path):
    with fs.open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
with fs.open("alice/tiny/model.safetensors", "rb", block_size=65536) as file:
    file.seek(-1000, 2)
    tail = hashlib.sha256(file.read()).hexdigest()
result = {
    "root": fs.ls(""), "models": fs.ls("alice"),
    "walk": {path: file_hash(path) for path in fs.find("alice/tiny")},
    "is folder": fs.isdir("alice/tiny/docs"), "is file": fs.isfile("alice/tiny/config.json"),
    "revision": fs.ls("alice/tiny@v1"), "old": fs.cat("alice/tiny@v1/config.json").decode(),
    "size": fs.size("alice/tiny/config.json"), "tail": tail,
    "missing": caught(lambda: fs.cat("alice/tiny/nothing")),
    "exists": [fs.exists(p) for p in ("alice", "nobody", "alice/tiny", "alice/tiny/nothing")],
    "write": caught(lambda: fs.pipe("alice/tiny/x", b"x")),
    "remove": caught(lambda: fs.rm("alice/tiny/config.json")),
    "secret": caught(lambda: fs.cat("alice/secret/key.bin")),
}
"""


def check(found: dict[str, Any], library: Library) -> None:
    walked = {path.removeprefix("alice/tiny/"): each for path, each in found["walk"].items()}
    assert walked == library.hashes
    assert found["is folder"]
    assert found["is file"]
    assert found["revision"] == ["alice/tiny@v1/config.json", "alice/tiny@v1/old.txt"]
    assert found["old"] == library.old_config.decode()
    assert found["size"] == len(library.tiny["config.json"])
    assert found["tail"] == sha256(library.tiny["model.safetensors"][-1000:]).hexdigest()
    assert found["missing"]["kinds"][0] == "FileNotFoundError"
    assert found["exists"] == [True, False, True, False]
    for name in ("write", "remove"):
        error = found[name]
        assert "OSError" in error["kinds"], error
        assert "deltahub push" in error["text"], error


def test_s3fs_walks_and_reads(alices: Machine, library: Library) -> None:
    found = alices.run(WALK, anonymous=False)
    check(found, library)
    assert "alice" in found["root"]
    assert {"alice/tiny", "alice/secret", "alice/sharded"} <= set(found["models"])
    assert found["secret"] is None


def test_s3fs_reads_public_models_without_keys(guests: Machine, library: Library) -> None:
    found = guests.run(WALK, anonymous=True)
    check(found, library)
    assert "alice/secret" not in found["models"]
    assert found["secret"]["kinds"][0] == "FileNotFoundError"

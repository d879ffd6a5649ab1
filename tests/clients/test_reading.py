"""Ranges, listings and headers: reading without downloading whole files."""

from pathlib import Path

from clients.conftest import Library, World
from clients.machine import Machine, hashes

FILE_SYSTEM = """
from huggingface_hub import HfFileSystem
fs = HfFileSystem()
with fs.open("alice/tiny/model.safetensors", block_size=65536) as file:
    file.seek(100_001)
    part = file.read(5000)
    file.seek(-17, 2)
    end = file.read()
result = {
    "root": sorted(fs.ls("alice/tiny", detail=False)),
    "folder": fs.ls("alice/tiny/docs", detail=False),
    "on a branch": fs.ls("alice/tiny@dev%2Fx", detail=False),
    "glob": sorted(fs.glob("alice/tiny/**/*.txt")),
    "size": fs.info("alice/tiny/model.safetensors")["size"],
    "sha256": fs.info("alice/tiny/model.safetensors")["lfs"]["sha256"],
    "part": part.hex(),
    "end": end.hex(),
    "text": fs.read_text("alice/tiny/README.md"),
    "old": fs.read_text("alice/tiny/config.json", revision="v1"),
    "is there": [fs.exists("alice/tiny/docs/deep"), fs.exists("alice/tiny/nope")],
    "missing": caught(lambda: fs.open("alice/tiny/nope.json")),
}
"""
SAFETENSORS = """
from huggingface_hub import get_safetensors_metadata
one = get_safetensors_metadata("alice/tiny")
result = {
    "sharded": one.sharded,
    "tensors": len(one.weight_map),
    "counts": one.parameter_count,
    "files": sorted(one.files_metadata),
    "none": caught(lambda: get_safetensors_metadata("alice/secret")),
}
"""
SHARDED = """
from huggingface_hub import get_safetensors_metadata
many = get_safetensors_metadata("alice/sharded")
result = [many.sharded, many.parameter_count, sorted(many.files_metadata), len(many.weight_map)]
"""
# What vLLM asks of a hub before it loads a model, and nothing else.
VLLM = """
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, list_repo_files, snapshot_download
api = HfApi()
sha = api.model_info("alice/sharded", revision="main").sha
files = list_repo_files("alice/sharded", revision=sha)
listed = HfFileSystem().ls("alice/sharded", detail=False, revision=sha)
patterns = [p for p in ("*.safetensors", "*.bin") if any(f.endswith(p[1:]) for f in listed)]
folder = snapshot_download("alice/sharded", allow_patterns=patterns, revision=sha)
index = hf_hub_download("alice/sharded", "model.safetensors.index.json", revision=sha)
result = {"sha": sha, "files": files, "listed": sorted(listed), "folder": folder, "index": index}
"""


def test_a_file_system_reads_parts_of_files(machine: Machine, library: Library) -> None:
    found = machine.run(FILE_SYSTEM)
    weights = library.tiny["model.safetensors"]
    assert found["root"] == sorted(
        {f"alice/tiny/{path.partition('/')[0]}" for path in library.tiny}
    )
    assert found["folder"] == ["alice/tiny/docs/deep"]
    assert any(path.endswith("/branch.txt") for path in found["on a branch"])
    assert found["glob"] == ["alice/tiny/docs/deep/note s.txt", "alice/tiny/old.txt"]
    assert found["size"] == len(weights)
    assert found["sha256"] == library.hashes["model.safetensors"]
    assert bytes.fromhex(found["part"]) == weights[100_001:105_001]
    assert bytes.fromhex(found["end"]) == weights[-17:]
    assert found["text"].encode() == library.tiny["README.md"]
    assert found["old"].encode() == library.old_config
    assert found["is there"] == [True, False]
    assert "FileNotFoundError" in found["missing"]["kinds"]


def test_the_header_of_a_model_tells_its_parameters(machine: Machine, library: Library) -> None:
    found = machine.run(SAFETENSORS)
    assert found["sharded"] is False
    assert found["files"] == ["model.safetensors"]
    assert found["counts"] == {"BF16": library.models.parameters}
    assert "NotASafetensorsRepoError" in found["none"]["kinds"]


def test_the_headers_of_shards_tell_the_parameters(machine: Machine, library: Library) -> None:
    is_sharded, counts, files, n_tensors = machine.run(SHARDED)
    assert is_sharded
    assert counts == {"BF16": library.models.parameters}
    expected = sorted(path.name for path in library.models.sharded.glob("*.safetensors"))
    assert files == expected
    assert len(files) > 1
    assert n_tensors > len(files)


def test_what_an_inference_server_asks_for_is_there(
    machine: Machine, library: Library, world: World
) -> None:
    found = machine.another(token=world.alice_reads).run(VLLM)
    there = hashes(library.models.sharded)
    assert sorted(found["files"]) == sorted(there)
    assert [path.rpartition("/")[2] for path in found["listed"]] == sorted(there)
    assert Path(found["folder"]).name == found["sha"]
    weights = {path: digest for path, digest in there.items() if path.endswith(".safetensors")}
    index = Path(found["index"])
    expected = weights | {index.name: there[index.name]}
    assert hashes(found["folder"]) == expected

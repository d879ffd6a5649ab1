"""The streamer with which vLLM and SGLang load weights reads models that are stored as deltas."""

import pytest

from clients.conftest import Library, World
from clients.machine import Machine, hashes

STREAM = """
import glob, hashlib, os
import torch
from runai_model_streamer import SafetensorsStreamer, list_safetensors
from runai_model_streamer.safetensors_streamer.safetensors_streamer import pull_files
from safetensors.torch import load_file
def described(tensor):
    data = tensor.contiguous().view(dtype=torch.uint8).numpy().tobytes()
    return [str(tensor.dtype), list(tensor.shape), hashlib.sha256(data).hexdigest()]
def streamed(where):
    files = list_safetensors(f"s3://{where}")
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(files)
        tensors = {name: described(tensor) for name, tensor in streamer.get_tensors()}
    pull_files(f"s3://{where}", f"pulled/{where}", ignore_pattern=["*.safetensors"])
    return {"files": files, "tensors": tensors, "others": os.path.abspath(f"pulled/{where}")}
local = {}
for path in glob.glob(f"{folder}/*.safetensors"):
    local |= {name: described(tensor) for name, tensor in load_file(path).items()}
result = [local, *map(streamed, places)]
"""


def codecs_of(world: World, name: str) -> set[str]:
    """What a model's tensors are stored by."""
    answer = world.hub.call("GET", f"/v1/repositories/{name}/info", token=world.alice)
    return {tensor["codec"] for file in answer.json()["files"] for tensor in file["tensors"]}


def test_a_model_stored_as_deltas_streams_bit_for_bit(
    alices: Machine, world: World, library: Library
) -> None:
    assert "fm_delta" in codecs_of(world, "alice/sharded")
    folder = library.models.sharded
    places = ["alice/sharded", "alice/sharded@main", "ALICE/Sharded@HEAD"]
    local, *found = alices.run(STREAM, folder=folder, places=places)
    assert len(local) > 10
    others = {path: each for path, each in hashes(folder).items() if "safetensors" not in path}
    for place, streamed in zip(places, found, strict=True):
        assert len(streamed["files"]) == len(list(folder.glob("*.safetensors"))) > 1
        assert all(path.startswith(f"s3://{place}/") for path in streamed["files"])
        assert streamed["tensors"] == local
        pulled = hashes(streamed["others"])
        assert {path: pulled[path] for path in others} == others


def test_a_public_model_streams_without_keys(guests: Machine, library: Library) -> None:
    env = {"RUNAI_STREAMER_S3_UNSIGNED": "1"}
    places = ["alice/tiny", "alice/tiny@v1", "alice/tiny@dev/x"]
    local, head, first, branch = guests.run(
        STREAM, env=env, folder=library.models.tiny, places=places
    )
    assert head["tensors"] == branch["tensors"] == local
    assert first["tensors"] == {}  # the first commit has no weights
    assert "branch.txt" in hashes(branch["others"])


@pytest.mark.parametrize("place", ["alice/secret", "alice/nothing", "nobody/x"])
def test_what_a_stranger_may_not_read_is_not_there(
    bobs: Machine, library: Library, place: str
) -> None:
    script = """
        from runai_model_streamer import list_safetensors
        result = list_safetensors(f"s3://{place}")
    """
    if place.startswith("nobody"):
        assert "NoSuchBucket" in bobs.refused(script, place=place).kinds
    else:
        assert bobs.run(script, place=place) == []

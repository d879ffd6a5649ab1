"""Each branch of a merge is an ordinary model to the clients that people have."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, load_file

from clients.conftest import World
from clients.machine import Machine
from support.merging.plain_emr import plain_emr
from support.models import tiny_llamas

WEIGHTS = "model.safetensors"
TASKS = ("next", "reverse")
LOAD = """
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
for branch in branches:
    model = AutoModelForCausalLM.from_pretrained("alice/merged", revision=branch)
    save_file(model.state_dict(), f"{folder}/{branch}.safetensors")
result = branches
"""
DOWNLOAD = """
from huggingface_hub import hf_hub_download
result = [hf_hub_download("alice/merged", weights, revision=branch) for branch in branches]
"""


# Workers steal tests from each other: a module may be begun twice in one session.
@pytest.fixture(scope="session")
def merged(world: World) -> list[str]:
    """The branches of alice/merged."""
    hub, token = world.hub, world.alice
    for rule in ("base", *TASKS):
        hub.create(f"alice/{rule}", token=token)
        job = hub.commit(f"alice/{rule}", tiny_llamas.files(rule), token)["job_id"]
        assert hub.wait_for_job(job, token)["state"] == "done"
    models = [f"alice/{rule}" for rule in TASKS]
    arguments = {"name": "alice/merged", "base": "alice/base", "models": models}
    body = {"kind": "merge", "arguments": arguments}
    job = hub.call("POST", "/v1/jobs", token=token, body=body).json()
    assert hub.wait_for_job(job["id"], token)["state"] == "done"
    return ["main", *TASKS]


def test_transformers_loads_what_a_plain_emr_gives(
    newest: Machine, merged: list[str], tmp_path: Path
) -> None:
    newest.run(LOAD, branches=merged, folder=str(tmp_path))
    found = {branch: load_file(tmp_path / f"{branch}.safetensors") for branch in merged}
    base, *models = (_doubles(rule) for rule in ("base", *TASKS))
    expected = plain_emr(base, models)
    for name, values in expected.unified.items():
        assert np.array_equal(found["main"][name], values.astype(np.float32)), name
    for task, tensors in zip(TASKS, expected.tasks, strict=True):
        assert found[task].keys() == tensors.keys()
        for name, values in tensors.items():
            assert np.allclose(found[task][name], values, rtol=2**-23, atol=0), (task, name)


def _doubles(rule: str) -> dict[str, np.ndarray]:
    tensors = load(tiny_llamas.files(rule)[WEIGHTS])
    return {name: tensor.astype(np.float64) for name, tensor in tensors.items()}


def test_every_client_gets_the_same_bytes(
    machine: Machine, merged: list[str], world: World
) -> None:
    paths = machine.run(DOWNLOAD, branches=merged, weights=WEIGHTS)
    files = [Path(path).read_bytes() for path in paths]
    assert len(set(files)) == len(merged)
    for branch, data in zip(merged, files, strict=True):
        sent = world.hub.call("GET", f"/alice/merged/resolve/{branch}/{WEIGHTS}", token=world.alice)
        assert sent.body == data

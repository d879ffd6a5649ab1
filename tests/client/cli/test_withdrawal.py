"""`visibility` and `rm` say that other models are stored without this one, and wait for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltahub.client import Hub, RepositoryNotFound
from support.models.model_folders import contents, write_model
from support.models.tiny_models import base, finetune
from support.service.client_process import deltahub
from support.service.hub import RunningHub


def plan(hub: RunningHub, name: str) -> list[dict[str, Any]]:
    """How the hub stores the tensors of the model, as anybody may ask."""
    path = f"/v1/repositories/{name}/recipes/model.safetensors"
    tensors: list[dict[str, Any]] = hub.call("GET", path).json()["tensors"]
    return tensors


def bases_of(hub: RunningHub, name: str) -> set[str]:
    return {base for tensor in plan(hub, name) for base in tensor["bases"]}


@pytest.mark.parametrize("command", ["visibility", "rm"])
def test_others_are_stored_without_a_base_before_it_is_gone(
    command: str, hub_server: RunningHub, hub: Hub, name: str, tmp_path: Path,
    other_machine: Callable[[], Path], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    seed = 51 if command == "rm" else 52  # no other test on this hub has these weights
    tuner = f"tuner-{command}"
    base_folder = write_model(tmp_path / "base", base(seed))
    tuned = write_model(tmp_path / "tuned", finetune(1e-4, seed))
    hub.push(base_folder, name)
    with Hub(hub_server.url, hub_server.user(tuner)) as other:
        other.push(tuned, f"{tuner}/tuned", base=name)
        secret = {tensor["id"] for tensor in plan(hub_server, name)}
        secret -= {tensor["id"] for tensor in plan(hub_server, f"{tuner}/tuned")}
        assert secret & bases_of(hub_server, f"{tuner}/tuned")
        monkeypatch.setenv("DELTAHUB_URL", hub_server.url)
        monkeypatch.setenv("DELTAHUB_TOKEN", hub_server.admin_token)
        arguments = ["rm", name, "--yes"] if command == "rm" else ["visibility", name, "private"]
        done = deltahub(*arguments)
        assert done.status == 0, done.err
        assert f"1 model stored as differences from {name} is being stored without it" in done.err
        assert "store other models without it at the hub" in done.err
        with pytest.raises(RepositoryNotFound):
            other.repository(name)
        assert not secret & bases_of(hub_server, f"{tuner}/tuned")
        other_machine()
        assert contents(other.pull(f"{tuner}/tuned")) == contents(tuned)

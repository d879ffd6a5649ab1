"""A declared base that is absent or has no safetensors file never stops a push."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from deltahub.client import Hub
from deltahub.client.errors import InvalidArgument
from deltahub.client.progress import Lines
from support.models.model_folders import base_tensors, contents, write_model
from support.models.tiny_models import base as trained
from support.models.tiny_models import finetune
from support.models.told_bases import info_once, info_text
from support.service.hub import RunningHub


def test_an_absent_base_is_told_and_used_once_it_arrives(
    hub_server: RunningHub, hub: Hub, name: str, tmp_path: Path, other_machine: Callable[[], Path]
) -> None:
    base, tuned = f"{name}-base", write_model(tmp_path / "tuned", finetune(1e-4, seed=31))
    assert hub.push(tuned, name, base=base).state == "proved"
    before = hub.info(name)
    assert before["base"] | {"declared": None, "pending_job_id": None} == {
        "declared": None,
        "declared_share": None,
        "pending_job_id": None,
        "declared_status": "absent",
        "commit": None,
        "measured": [],
        "is_gone": False,
        "is_own_history": False,
    }
    line = f"base declared: {base} (absent: there is none that you may read; used once it arrives)"
    assert line in info_text(hub_server, hub_server.admin_token, name)

    other_machine()
    assert contents(hub.pull(name, sha256=True)) == contents(tuned)
    pushed = hub.push(write_model(tmp_path / "base", trained(seed=31)), base)
    after = info_once(hub, name, lambda found: bool(found["base"]["measured"]))
    assert (after["base"]["declared_status"], after["base"]["commit"]) == (
        "resolved",
        pushed.commit,
    )
    assert after["totals"]["own"] < 0.7 * before["totals"]["own"]
    shown = info_text(hub_server, hub_server.admin_token, name)
    assert f"base declared: {base} (resolved: 100% of the weights)" in shown
    assert f"base measured: {base}@{pushed.commit[:12]}: 100% of the weights" in shown
    other_machine()
    assert contents(hub.pull(name, sha256=True)) == contents(tuned)


def test_a_base_without_safetensors_is_said_to_be_of_no_use_so_far(
    hub_server: RunningHub, hub: Hub, name: str, tmp_path: Path
) -> None:
    base, folder = f"{name}-base", tmp_path / "base"
    folder.mkdir()
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04 pickled")
    hub.push(folder, base)
    tuned = write_model(tmp_path / "tuned", finetune(1e-4, seed=31))
    said = io.StringIO()
    pushed = hub.push(tuned, name, base=base, progress=Lines(said))
    assert pushed.base_state == "no_safetensors"
    assert f"warning: {base} has no safetensors file here" in said.getvalue()
    line = f"base declared: {base} (not used so far: it has no safetensors file;"
    assert line in info_text(hub_server, hub_server.admin_token, name)


def test_no_model_is_its_own_base(hub: Hub, name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", base_tensors())
    hub.push(folder, name)
    with pytest.raises(InvalidArgument, match="its own base"):
        hub.push(folder, name, base=name)
    hub.push(folder, name, base=name, revision="a-branch")

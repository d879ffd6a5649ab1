"""A declared base that is absent, unreadable or of another architecture never stops a push."""

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from deltahub.client import Hub
from deltahub.client.errors import InvalidArgument
from deltahub.client.progress import Lines
from support.models.model_folders import contents, write_model
from support.models.tiny_models import base as trained
from support.models.tiny_models import finetune
from support.service.client_process import deltahub
from support.service.hub import RunningHub


def info_text(hub_server: RunningHub, token: str, name: str) -> str:
    """The text that `deltahub info` prints."""
    environment = {"DELTAHUB_URL": hub_server.url, "DELTAHUB_TOKEN": token}
    run = deltahub("info", name, "--brief", environment=environment)
    assert run.status == 0, run.err
    return run.out


def info_once(hub: Hub, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The repository's info once the condition holds: re-planning is a separate job."""
    deadline = time.monotonic() + 60
    while not condition(found := hub.info(name)):
        assert time.monotonic() < deadline, found["base"]
        time.sleep(0.1)
    return found


def other_architecture(folder: Path) -> Path:
    rng = np.random.default_rng(3)
    folder.mkdir()
    shapes = {"conv.kernel": (48, 7, 7, 31), "gate.bias": (9000,), "proj": (333, 201)}
    tensors = {key: rng.normal(0, 0.1, shape).astype(np.float16) for key, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


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


def test_a_base_of_another_architecture_is_told_to_be_of_no_use(
    hub_server: RunningHub, hub: Hub, name: str, tmp_path: Path, other_machine: Callable[[], Path]
) -> None:
    wrong = f"{name}-wrong"
    hub.push(other_architecture(tmp_path / "wrong"), wrong)
    tuned = write_model(tmp_path / "tuned", finetune(1e-4, seed=33))
    assert hub.push(tuned, name, base=wrong).state == "proved"
    found = hub.info(name)
    assert found["base"]["declared_status"] == "unused"
    assert wrong not in [each["repository"] for each in found["base"]["measured"]]
    line = f"base declared: {wrong} (not used: nothing here is coded against its tensors)"
    assert line in info_text(hub_server, hub_server.admin_token, name)
    other_machine()
    assert contents(hub.pull(name, sha256=True)) == contents(tuned)


def test_an_unreadable_base_is_told_like_an_absent_one_and_used_once_it_may_be_read(
    hub_server: RunningHub, name: str, tmp_path: Path, other_machine: Callable[[], Path]
) -> None:
    theirs, mine = hub_server.user("base-owner"), hub_server.user("base-guesser")
    base = write_model(tmp_path / "base", trained(seed=41))
    tuned = write_model(tmp_path / "tuned", finetune(1e-4, seed=41))
    stranger = write_model(tmp_path / "stranger", finetune(1e-4, seed=42))
    with Hub(hub_server.url, theirs) as owner, Hub(hub_server.url, mine) as guesser:
        owner.push(base, "base-owner/base", private=True)
        other_machine()
        guesser.push(tuned, "base-guesser/tuned", base="base-owner/base")
        guesser.push(stranger, "base-guesser/other", base="base-owner/nothing")
        before = guesser.info("base-guesser/tuned")
        absent = guesser.info("base-guesser/other")["base"]
        assert before["base"] == absent | {"declared": "base-owner/base"}
        assert (absent["declared_status"], absent["commit"]) == ("absent", None)
        line = "base declared: base-owner/base (absent: there is none that you may read;"
        assert line in info_text(hub_server, mine, "base-guesser/tuned")

        owner.delete("base-owner/base")
        owner.push(base, "base-owner/base", private=False)
        after = info_once(
            guesser, "base-guesser/tuned", lambda found: bool(found["base"]["measured"])
        )
        assert after["base"]["declared_status"] == "resolved"
        assert after["totals"]["own"] < 0.7 * before["totals"]["own"]
        other_machine()
        assert contents(guesser.pull("base-guesser/tuned", sha256=True)) == contents(tuned)


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


def test_a_base_that_is_gone_is_said_to_be(
    hub_server: RunningHub, hub: Hub, name: str, tmp_path: Path
) -> None:
    base, tuned = trained(seed=37), finetune(1e-4, seed=37)
    hub.push(write_model(tmp_path / "base", base), f"{name}-base", private=True)
    hub.push(write_model(tmp_path / "tuned", tuned), name, base=f"{name}-base", private=True)
    info_once(hub, name, lambda found: bool(found["base"]["measured"]))
    hub.delete(f"{name}-base")
    text = info_text(hub_server, hub_server.admin_token, name)
    assert "differences from a model or revision that is gone" in text


def test_no_model_is_its_own_base(hub: Hub, name: str, tmp_path: Path) -> None:
    folder = other_architecture(tmp_path / "m")
    hub.push(folder, name)
    with pytest.raises(InvalidArgument, match="its own base"):
        hub.push(folder, name, base=name)
    hub.push(folder, name, base=name, revision="a-branch")

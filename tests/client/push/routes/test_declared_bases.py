"""A declared base that is unreadable, gone or of another architecture never stops a push."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from deltahub.client import Hub
from support.models.model_folders import contents, write_model
from support.models.tiny_models import base as trained
from support.models.tiny_models import finetune
from support.models.told_bases import info_once, info_text
from support.service.hub import RunningHub


def other_architecture(folder: Path) -> Path:
    rng = np.random.default_rng(3)
    folder.mkdir()
    shapes = {"conv.kernel": (48, 7, 7, 31), "gate.bias": (9000,), "proj": (333, 201)}
    tensors = {key: rng.normal(0, 0.1, shape).astype(np.float16) for key, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


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

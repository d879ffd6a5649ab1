"""A whole upgrade by commands alone, at a served hub: a kit is made, all moves, all is put back."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltahub.client.transfer import Example
from deltahub.methods.transfer.models.adapters import TEACHER, save_adapter
from support.service.client_process import Finished, deltahub
from support.service.hub import ServedHub, served_hub
from support.transfer.private_task import write_jsonl
from support.transfer.running import TASK, write_base
from support.transfer.tiny_world import LINEARS, NAME, old_base, with_teacher

pytestmark = pytest.mark.long

N, N_TESTS = 100, 20
KIT = ("--learning-rate", "0.004", "--epochs", "6", "--rank", "8", "--batch-size", "16",
       *(part for name in LINEARS for part in ("--targets", name)))  # fmt: skip
# Few inputs and epochs: how well each way does is measured elsewhere.
MOVE = ("--rungs", "copy", "--rungs", "trans_lora", "--n", "40", "--max-loss", "0.9",
        "--epochs", "10", "--learning-rate", "0.004")  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ServedHub]:
    with served_hub(tmp_path / "data", environment={"OMP_NUM_THREADS": "1"}) as found:
        yield found


def test_a_kit_moves_its_adapter_with_the_base(hub: ServedHub, tmp_path: Path) -> None:
    environment = {
        "DELTAHUB_URL": hub.url, "DELTAHUB_TOKEN": hub.admin_token,
        "DELTAHUB_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip

    def run(*arguments: str) -> Finished:
        done = deltahub(*arguments, environment=environment)
        assert done.status == 0, (arguments, done.err)
        return done

    def show() -> dict[str, Any]:
        found: dict[str, Any] = run("base", "show", "1", "--json").json()
        return found

    found = TASK.examples(N + N_TESTS, 0)
    save_adapter(with_teacher(old_base(), found[:N]), TEACHER, tmp_path / "digits",
                 "admin/base-v1", None)  # fmt: skip
    for name in ("v1", "v2"):
        run("push", str(write_base(name, tmp_path / name)), f"admin/base-{name}", "--base", "none")
    run("push", str(tmp_path / "digits"), "admin/digits", "--base", "admin/base-v1")
    private = [Example(each.text, each.completion) for each in found]
    examples = {
        "data": write_jsonl(tmp_path / "data.jsonl", private[:N]),
        "tests": write_jsonl(tmp_path / "tests.jsonl", private[N:]),
        "seeds": write_jsonl(tmp_path / "seeds.jsonl", private[:5]),
    }
    given = [part for name, path in examples.items() for part in (f"--{name}", str(path))]
    run("adapter", "kit", "admin/digits", "--base", "admin/base-v1", "--name", NAME, "--prompt",
        "{input}=", "--max-new-tokens", "3", "--output", str(tmp_path / "kit"), "--yes", "--push",
        *given, *KIT)  # fmt: skip

    run("base", "policy", "admin/base-v1", "auto")
    told = run("base", "upgrade", "admin/base-v2", "--from", "admin/base-v1", *MOVE).out
    assert "upgrade 1: 1 planned" in told
    deadline = time.monotonic() + 300
    while (upgrade := show())["state"] == "running":
        assert time.monotonic() < deadline, upgrade
        time.sleep(1)
    (move,) = upgrade["adapters"]
    assert (upgrade["state"], move["state"]) == ("done", "published"), move["why"]
    measured = {each["rung"]: each for each in move["measured"]}
    assert measured["trans_lora"]["agreed"]["n"] == 8, measured
    assert measured["trans_lora"]["cost"]["seconds"] > 0
    # The table says what the move took, and no more what was planned.
    assert f"[{move['chosen']}]" in run("base", "show", "1").out

    report = hub.call("GET", "/-/upgrades/1", token=hub.admin_token)
    assert report.status == 200
    assert b'data-move-state="published"' in report.body
    assert b"choice" in report.body

    assert run("base", "put-back", "1").out == "deleted admin/digits-base-v2\n"
    assert show()["state"] == "put_back"
    gone = deltahub("info", "admin/digits-base-v2", environment=environment)
    assert gone.status != 0
    names = json.loads(run("ls", "--json").out)
    assert "admin/digits" in json.dumps(names)

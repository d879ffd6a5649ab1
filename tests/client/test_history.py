"""Pruning, dropped revisions and rules of retention, by the SDK and the command line."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deltahub.client import Hub
from deltahub.client.cli.commands import group
from deltahub.client.errors import Forbidden, InvalidArgument, NotFound
from deltahub.client.records import Rule
from support.service.hub import RunningHub


@pytest.fixture
def commits(hub: Hub, name: str, tmp_path: Path) -> list[str]:
    """Five checkpoints on main, proved."""
    folder = tmp_path / "run"
    folder.mkdir()
    made = []
    for step in range(5):
        (folder / "weights.bin").write_bytes(b"%d" % step * 5000)
        made.append(hub.push(folder, name).commit)
    return made


def told(hub: RunningHub, *arguments: str, status: int = 0) -> str:
    environment = {"DELTAHUB_URL": hub.url, "DELTAHUB_TOKEN": hub.admin_token}
    result = CliRunner().invoke(group, arguments, env=environment)
    assert result.exit_code == status, result.output
    return result.output


def test_old_checkpoints_go_and_come_back(
    hub: Hub, name: str, commits: list[str], tmp_path: Path
) -> None:
    would = hub.prune(name, Rule(keep_last=2), dry_run=True)
    assert (list(would.commits), would.kept, would.size_bytes) == (commits[:3], 2, 15_000)
    assert hub.prune(name, Rule(keep_last=2)) == would
    with pytest.raises(NotFound):
        hub.revision(name, commits[1])
    assert hub.revision(name).parent == commits[3]
    dropped = hub.dropped(name)
    assert [each.commit for each in dropped] == commits[2::-1]
    assert {(each.reason, each.by) for each in dropped} == {("pruned", "admin")}
    with pytest.raises(InvalidArgument, match="0 dropped"):
        hub.take_back(name, "feed", branch="old")
    assert hub.take_back(name, commits[1][:12], branch="old").commit == commits[1]
    assert hub.revision(name, "old").parent == commits[0]
    pulled = hub.pull(name, revision="old", to=tmp_path / "back")
    assert (pulled / "weights.bin").read_bytes() == b"1" * 5000


def test_a_rule_prunes_after_each_push(hub: Hub, name: str, tmp_path: Path) -> None:
    assert hub.retention(f"{name}".partition("/")[0]) is None
    folder = tmp_path / "run"
    folder.mkdir()
    made = []
    for step in range(4):
        (folder / "weights.bin").write_bytes(b"%d" % step * 5000)
        made.append(hub.push(folder, name).commit)
        if step == 0:
            hub.set_retention(name, Rule(keep_last=2))
    assert hub.retention(name) == Rule(keep_last=2, of=name)
    assert hub.revision(name).commit == made[3]
    deadline = time.monotonic() + 30  # the push waits for its files, the rule comes after them
    while len(dropped := hub.dropped(name)) < 2:
        assert time.monotonic() < deadline, dropped
        time.sleep(0.05)
    assert [each.commit for each in dropped] == [made[1], made[0]]
    assert {each.by for each in hub.dropped(name)} == {None}
    hub.set_retention(name, None)
    assert hub.retention(name) is None


def test_the_commands_say_what_they_do(
    hub_server: RunningHub, name: str, commits: list[str]
) -> None:
    def run(*arguments: str, status: int = 0) -> str:
        return told(hub_server, *arguments, status=status)

    assert "--keep N" in run("prune", name, status=2)
    assert "as in 30d" in run("prune", name, "--older-than", "soon", status=2)
    assert "would drop 2 revisions" in run("prune", name, "--keep", "3", "--dry-run")
    assert "would drop 0 revisions" in run("prune", name, "--older-than", "1d", "--yes")
    kept = run("prune", name, "--keep", "1", "--keep-every", "2", "--yes")
    assert "dropped 2 revisions; 3 stay" in kept
    listed = run("dropped", name)
    assert commits[0][:12] in listed
    assert "pruned" in listed
    found: dict[str, Any] = json.loads(run("dropped", name, "--json"))
    assert [each["commit"] for each in found["items"]] == [commits[2], commits[0]]
    assert "needs --branch" in run("dropped", name, "--take-back", commits[0], status=2)
    back = run("dropped", name, "--take-back", commits[0][:10], "--branch", "first")
    assert f"{name}@first is at {commits[0][:12]}" in back
    assert "keeps all of its history" in run("retention", name)
    assert "last 3 commits" in run("retention", name, "--keep", "3", "--older-than", "2w")
    assert "keeps all of its history" in run("retention", name, "--clear")


def test_strangers_and_readers_neither_see_nor_drop(
    hub_server: RunningHub, name: str, commits: list[str]
) -> None:
    stranger = hub_server.user(f"stranger-{commits[0][:8]}")
    with Hub(hub_server.url, stranger) as hub:
        for do in (
            lambda: hub.prune(name, Rule()),
            lambda: hub.dropped(name),
            lambda: hub.take_back(name, commits[0], branch="x"),
            lambda: hub.set_retention(name, Rule()),
            lambda: hub.set_retention("admin", Rule()),
            lambda: hub.retention("admin"),
        ):
            with pytest.raises(Forbidden):
                do()

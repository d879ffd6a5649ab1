"""Pruning, dropped revisions and rules of retention, by the SDK and the command line."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deltahub.client import Hub
from deltahub.client.cli.commands import group
from deltahub.client.errors import Forbidden, NotFound
from deltahub.client.records import Rule
from deltahub.registry.access import organizations
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
    assert 0 < (would.stored_bytes or 0) < 15_000
    assert hub.prune(name, Rule(keep_last=2)) == would
    with pytest.raises(NotFound):
        hub.revision(name, commits[1])
    assert hub.revision(name).parent == commits[3]
    dropped = hub.dropped(name)
    assert [each.commit for each in dropped] == commits[2::-1]
    assert {(each.reason, each.by) for each in dropped} == {("pruned", "admin")}
    for unknown in ("feed", "feed" * 10):
        with pytest.raises(NotFound, match="no dropped revision"):
            hub.take_back(name, unknown, branch="old")
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
    for age, why in (("soon", "30d or 2w"), ("1m", "minutes or months"), ("9" * 20 + "w", "large")):
        assert why in run("prune", name, "--older-than", age, status=2)
    assert "--keep" in run("prune", name, "--keep", "9" * 20, status=2)
    assert "--keep-every needs" in run("prune", name, "--keep-every", "2", status=2)
    would = run("prune", name, "--keep", "3", "--dry-run")
    assert "would drop 2 revisions" in would
    assert commits[0][:12] in would
    assert "10.0 kB of files as they were uploaded" in would
    assert "nothing to drop; 5 stay" in run("prune", name, "--older-than", "1d", "--yes")
    kept = run("prune", name, "--keep", "1", "--keep-every", "2", "--yes")
    assert "dropped 2 revisions; 3 stay" in kept
    listed = run("dropped", name)
    assert commits[0][:12] in listed
    assert "pruned" in listed
    assert " UTC" in listed
    found: dict[str, Any] = json.loads(run("dropped", name, "--json"))
    assert [each["commit"] for each in found["items"]] == [commits[2], commits[0]]
    assert "needs --branch" in run("dropped", name, "--take-back", commits[0], status=2)
    back = run("dropped", name, "--take-back", commits[0][:10], "--branch", "first")
    assert f"{name}@first is at {commits[0][:12]}" in back
    assert "keeps all of its history" in run("retention", name)
    said = run("retention", name, "--keep", "1", "--keep-every", "22", "--older-than", "14d")
    assert "the last commit of each branch, every 22nd commit (of a run:" in said
    assert "what is younger than 2 weeks" in said
    assert "keeps all of its history" in run("retention", name, "--clear")


def test_without_its_own_rule_a_repository_has_that_of_its_namespace(
    hub_server: RunningHub, tmp_path: Path
) -> None:
    token = hub_server.user("rita")
    hub_server.create("rita/run", token=token)
    environment = {"DELTAHUB_URL": hub_server.url, "DELTAHUB_TOKEN": token}

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(group, ["retention", *arguments], env=environment)
        assert result.exit_code == 0, result.output
        return result.output

    run("rita", "--keep", "3")
    run("rita/run", "--keep", "5")
    assert "the last 3 commits of each branch, by the rule of rita" in run("rita/run", "--clear")


def test_the_log_names_each_commit_once(
    hub_server: RunningHub, hub: Hub, name: str, commits: list[str]
) -> None:
    found = hub.log(name)
    assert [each.commit for each in found] == commits[::-1]
    assert {(each.title, each.author) for each in found} == {("Push 1 file", "admin")}
    assert [each.commit for each in hub.log(name, commits[2], limit=2)] == commits[2:0:-1]
    pages = hub_server.call(
        "GET", f"/v1/repositories/{name}/commits?limit=3", token=hub_server.admin_token
    ).json()
    assert (len(pages["items"]), pages["next_cursor"]) == (3, commits[1])
    told_of = told(hub_server, "log", name, "--limit", "2")
    assert commits[4][:12] in told_of
    assert commits[2][:12] not in told_of
    assert " UTC" in told_of
    listed = json.loads(told(hub_server, "log", f"{name}@{commits[1]}", "--json"))
    assert [each["commit"] for each in listed["items"]] == commits[1::-1]
    told(hub_server, "log", f"{name}@{'0' * 40}", status=3)
    assert "names no revision" in told(hub_server, "log", f"{name}@", status=2)


def test_a_writer_is_told_which_role_a_rule_needs(hub_server: RunningHub) -> None:
    organizations.create_organization(hub_server.registry, "rowers")
    token = hub_server.user("rower")
    organizations.add_member(hub_server.registry, "rowers", "rower", "write")
    with Hub(hub_server.url, token) as hub:
        with pytest.raises(Forbidden, match=r"needs the role admin .* --role admin"):
            hub.set_retention("rowers", Rule())
        assert hub.retention("rowers") is None


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

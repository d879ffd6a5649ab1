"""The `hf` command: what a user types who writes no Python."""

import json

from clients.conftest import Library, World
from clients.machine import Machine


def test_the_newest_command_does_a_users_day(
    newest: Machine, library: Library, world: World, name: str
) -> None:
    def hf(*arguments: object) -> str:
        done = newest.command(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "alice" in hf("auth", "whoami")
    assert name in hf("repos", "create", name)
    hf("repos", "branch", "create", name, "dev/x")
    hf("repos", "tag", "create", name, "v1", "-m", "the first")
    assert "v1" in hf("repos", "tag", "list", name)
    hf("upload", name, library.models.tiny / "config.json", "sub/config.json")
    assert "sub" in hf("models", "ls", name)
    assert name in hf("repos", "list")
    listed = json.loads(hf("models", "list", "--author", "alice", "--format", "json"))
    assert name in [one["id"] for one in listed]
    assert json.loads(hf("models", "info", "alice/tiny", "--format", "json"))["author"] == "alice"
    hf("repos", "settings", name, "--private")
    assert "config.json" in hf("download", "alice/tiny", "--dry-run")
    hf("repos", "delete-files", name, "sub/")
    assert world.hashes(name) == {}
    hf("repos", "tag", "delete", name, "v1", "--yes")
    hf("repos", "branch", "delete", name, "dev/x")
    hf("repos", "move", name, f"{name}-moved")
    hf("repos", "delete", f"{name}-moved", "--yes")
    done = newest.command("models", "info", f"{name}-moved")
    assert done.returncode != 0
    assert "not found" in done.stderr.lower()


def test_who_logs_in_needs_no_environment(machine: Machine, library: Library, world: World) -> None:
    fresh = machine.another(token=None)
    done = fresh.command("auth", "login", "--token", world.alice)
    assert done.returncode == 0, done.stdout + done.stderr
    done = fresh.command("auth", "whoami")
    assert "alice" in done.stdout, done.stdout + done.stderr
    done = fresh.command("download", "alice/secret", "key.bin")
    assert done.returncode == 0, done.stdout + done.stderr
    done = machine.another(token=None).command("auth", "login", "--token", "dh_nonsense")
    assert done.returncode != 0
    assert "nvalid" in done.stdout + done.stderr

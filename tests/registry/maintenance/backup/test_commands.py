"""`deltahub backup` and `deltahub restore`: what they print, and their exit statuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deltahub.registry.commands.backup import backup, restore
from deltahub.registry.maintenance.deletions import deletions_held
from support.registry.small_hub import PATH, SmallHub


def run(*arguments: str) -> Result:
    command = restore if arguments[0] == "restore" else backup
    return CliRunner().invoke(command, arguments[1:])


def test_a_backup_is_made_listed_proved_and_restored(hub: SmallHub, tmp_path: Path) -> None:
    place, data_dir = str(tmp_path / "place"), str(hub.reg.data_dir)
    done = run("backup", "--to", place, "--data-dir", data_dir)
    assert done.exit_code == 0, done.output
    assert "the first backup" in done.output
    again = run("backup", "--to", place, "--data-dir", data_dir, "--keep", "1", "--json")
    made = json.loads(again.stdout)
    assert (made["n_copied"], made["pruned"]["snapshots"]) == (0, 1)
    name = made["snapshot"]["name"]
    listed = json.loads(run("backup", "list", "--from", place, "--json").stdout)
    assert [each["name"] for each in listed["snapshots"]] == [name]
    assert name in run("backup", "list", "--from", place).output
    proved = run("backup", "verify", "--from", place, "--snapshot", name)
    assert proved.exit_code == 0
    assert "whole" in proved.output
    new = tmp_path / "new"
    restored = run("restore", "--from", place, "--data-dir", str(new))
    assert restored.exit_code == 0, restored.output
    assert f"deltahub serve --data-dir {new}" in restored.output
    assert f"its objects go to the folder {new / 'objects'}" in restored.stderr
    refused = run("restore", "--from", place, "--data-dir", str(new))
    assert refused.exit_code == 2
    assert "is not empty" in refused.output


def test_damage_in_the_hub_is_exit_status_1_and_names_the_files(
    hub: SmallHub, tmp_path: Path
) -> None:
    hub.lose("ann/tune")
    place = str(tmp_path / "place")
    done = run("backup", "--to", place, "--data-dir", str(hub.reg.data_dir))
    assert done.exit_code == 1
    assert f"needed by '{PATH}' of ann/tune" in done.output
    assert run("backup", "verify", "--from", place).exit_code == 1
    assert run("restore", "--from", place, "--data-dir", str(tmp_path / "new")).exit_code == 1


def test_what_cannot_run_says_why(hub: SmallHub, tmp_path: Path) -> None:
    data_dir = str(hub.reg.data_dir)
    assert run("backup", "--data-dir", data_dir).exit_code == 2
    away = str(tmp_path / "away" / "place")
    refused = run("backup", "--to", away, "--data-dir", data_dir)
    assert refused.exit_code == 2
    assert f"there is no folder {tmp_path / 'away'}" in refused.output
    assert run("backup", "list", "--from", away).exit_code == 2
    with deletions_held(hub.reg):
        busy = run("backup", "--to", str(tmp_path / "place"), "--data-dir", data_dir)
    assert busy.exit_code == 3
    assert "another backup" in busy.output


def test_a_restore_says_which_bucket_the_environment_leads_it_to(
    hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, new = str(tmp_path / "place"), tmp_path / "new"
    assert run("backup", "--to", place, "--data-dir", str(hub.reg.data_dir)).exit_code == 0
    for name, value in {
        "DELTAHUB_STORE_URL": "s3://hubs/other", "DELTAHUB_S3_ENDPOINT": "http://127.0.0.1:1",
        "DELTAHUB_S3_RETRY_S": "0", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    away = run("restore", "--from", place, "--data-dir", str(new))
    assert away.exit_code == 2
    assert "its objects go to s3://hubs/other (DELTAHUB_STORE_URL)" in away.stderr
    assert not new.exists()

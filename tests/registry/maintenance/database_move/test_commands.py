"""`deltahub db`: what it prints and refuses, without a PostgreSQL server."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from deltahub.client.cli.commands import group
from deltahub.registry import Registry, Settings
from deltahub.registry.data_folder import (
    MOVE_LOCK,
    RECOMPRESS_LOCK,
    SERVE,
    SERVE_LOCK,
    WORKER_LOCK,
    DataFolderLock,
)
from deltahub.registry.db import schema
from support.registry.old_schema import make_0006
from support.registry.opened import DATABASE, caller, opened_registry, push

AWAY = "postgresql+psycopg://hub:secret@127.0.0.1:1/hub"


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    with opened_registry(tmp_path) as reg:
        push(reg, caller(reg, "ann"), "ann/m", {"a.txt": b"a"})
    return tmp_path / "data"


def run(data_dir: Path, *arguments: str) -> Result:
    return CliRunner().invoke(group, ["db", *arguments, "--data-dir", str(data_dir)])


def test_show_names_the_database_and_counts_its_rows(hub: Path) -> None:
    shown = run(hub, "show")
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[:2] == [
        f"SQLite: {hub / DATABASE}",
        f"schema version {schema.head()}, that of this release",
    ]
    assert "repositories: 1 rows" in lines
    data = json.loads(run(hub, "show", "--json").stdout)
    assert (data["kind"], data["version"], data["rows"]["files"]) == ("SQLite", schema.head(), 1)


def test_an_old_database_is_shown_and_upgraded(hub: Path, tmp_path: Path) -> None:
    make_0006(tmp_path)
    assert f"version 0006; that of this release is {schema.head()}" in run(hub, "show").stdout
    done = run(hub, "upgrade")
    assert done.stdout == f"upgraded the database from schema version 0006 to {schema.head()}\n"
    again = run(hub, "upgrade")
    assert again.stdout == f"the database has schema version {schema.head()}: nothing to do\n"
    data = json.loads(run(hub, "upgrade", "--json").stdout)
    assert data == {"before": schema.head(), "after": schema.head()}


def test_an_old_database_is_not_upgraded_under_a_running_hub(hub: Path, tmp_path: Path) -> None:
    make_0006(tmp_path)
    for name in (SERVE_LOCK, WORKER_LOCK):
        with DataFolderLock(hub, name, SERVE):
            busy = run(hub, "upgrade")
        assert busy.exit_code == 3
        assert f"`{SERVE}`" in busy.stderr
    assert "0006" in run(hub, "show").stdout


def test_nothing_to_do_is_said_beside_a_running_hub(hub: Path) -> None:
    with DataFolderLock(hub, SERVE_LOCK, SERVE):
        assert run(hub, "upgrade").exit_code == 0


def test_a_newer_database_is_refused(hub: Path) -> None:
    with Registry.open(Settings(data_dir=hub)) as reg, reg.db.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for command in (["upgrade"], ["move", "--to", AWAY]):
        refused = run(hub, *command)
        assert refused.exit_code == 2
        assert "9999, which this release" in refused.stderr
    assert "9999" in run(hub, "show").stdout


@pytest.mark.parametrize("command", [["upgrade"], ["show"], ["move", "--to", AWAY]])
def test_a_folder_without_a_hub_is_refused_and_not_made(tmp_path: Path, command: list[str]) -> None:
    refused = run(tmp_path / "none", *command)
    assert refused.exit_code == 2
    assert "there is no hub" in refused.stderr
    assert not (tmp_path / "none").exists()


def test_an_old_database_has_to_be_upgraded_before_its_move(hub: Path, tmp_path: Path) -> None:
    make_0006(tmp_path)
    refused = run(hub, "move", "--to", AWAY)
    assert refused.exit_code == 2
    assert "deltahub db upgrade" in refused.stderr


@pytest.mark.parametrize("lock", [SERVE_LOCK, WORKER_LOCK, RECOMPRESS_LOCK, MOVE_LOCK])
def test_the_hub_has_to_be_stopped(hub: Path, lock: str) -> None:
    with DataFolderLock(hub, lock, SERVE):
        busy = run(hub, "move", "--to", AWAY, "--json")
    assert busy.exit_code == 3
    error = json.loads(busy.stderr.splitlines()[-1])["error"]
    assert error["code"] == "data_folder_busy"
    assert "stop the hub" in error["message"]


def test_a_command_that_has_the_database_open_ends_first(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltahub.registry.maintenance.database_move.source._BUSY_S", 0.1)
    with Registry.open(Settings(data_dir=hub)) as reg:
        caller(reg, "ann")
        busy = run(hub, "move", "--to", AWAY)
    assert busy.exit_code == 3
    assert "another process has" in busy.stderr


@pytest.mark.parametrize("url", ["sqlite:////tmp/other", "mysql://hub@localhost/hub", "nonsense"])
def test_a_target_of_another_kind_is_refused(hub: Path, url: str) -> None:
    refused = run(hub, "move", "--to", url)
    assert refused.exit_code == 1
    assert "postgresql+psycopg://USER@HOST/NAME" in refused.stderr


def test_a_hub_on_postgresql_already_is_refused(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAHUB_DATABASE_URL", AWAY)
    refused = run(hub, "move", "--to", AWAY)
    assert refused.exit_code == 1
    assert "on PostgreSQL already" in refused.stderr


def test_a_target_that_is_away_leaves_the_hub_as_it_was(hub: Path) -> None:
    for more in ([], ["--dry-run"]):
        failed = run(hub, "move", "--to", AWAY, *more)
        assert failed.exit_code == 2
        assert "cannot be reached" in failed.stderr
        assert "secret" not in failed.stderr
    with Registry.open(Settings(data_dir=hub)) as reg:
        push(reg, caller(reg, "ann"), "ann/m", {"b.txt": b"b"})


def test_an_earlier_old_file_is_not_overwritten(hub: Path) -> None:
    (hub / f"{DATABASE}.moved").write_bytes(b"the only copy")
    refused = run(hub, "move", "--to", AWAY)
    assert refused.exit_code == 1
    assert "from an earlier move" in refused.stderr

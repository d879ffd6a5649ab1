"""A restore has its folder to itself, and changes nothing in one that is not its own."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import select

from deltahub.registry import Registry, data_folder
from deltahub.registry.commands.backup import restore as restore_command
from deltahub.registry.data_folder import (
    SERVE_LOCK,
    WORKER_LOCK,
    DataFolderBusy,
    DataFolderLock,
    check_free,
)
from deltahub.registry.db.models import Repository
from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.maintenance.restore import run as restoring
from deltahub.registry.maintenance.restore.target import LOOKED_AT, RestoreRefused
from support.registry.backing_up import restored
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry
from support.registry.small_hub import SmallHub


@pytest.fixture
def place(hub: SmallHub, tmp_path: Path) -> Path:
    backup(hub.reg, str(tmp_path / "place"))
    return tmp_path / "place"


def test_a_second_restore_and_a_hub_cannot_begin_beside_a_restore(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, data_dir = restoring.place_database, tmp_path / "else" / "data"
    outputs = []

    def late(*arguments: object) -> None:
        for lock in (SERVE_LOCK, WORKER_LOCK):
            with pytest.raises(DataFolderBusy, match="deltahub restore"):
                check_free(data_dir, lock)
        arguments_again = ["--from", str(place), "--data-dir", str(data_dir)]
        again = CliRunner().invoke(restore_command, arguments_again)
        outputs.append((again.exit_code, again.output))
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(restoring, "place_database", late)
    restored(place, tmp_path / "else")
    ((status, output),) = outputs
    assert status == 3
    assert "deltahub restore" in output
    with opened_registry(tmp_path / "else") as reg:
        assert repositories(reg) == {"base", "notes", "tune"}


def test_a_restore_whose_folder_was_deleted_does_not_touch_the_next_one(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = restoring.place_database

    def late(*arguments: object) -> None:
        monkeypatch.setattr(restoring, "place_database", real)
        shutil.rmtree(tmp_path / "else" / "data")
        restored(place, tmp_path / "else")
        with opened_registry(tmp_path / "else") as reg:
            push_ingested(reg, caller(reg, "ann"), "ann/later", {"z.bin": os.urandom(5000)})
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(restoring, "place_database", late)
    with pytest.raises(RestoreRefused, match="another restore"):
        restored(place, tmp_path / "else")
    with opened_registry(tmp_path / "else") as reg:
        assert "later" in repositories(reg)


def repositories(reg: Registry) -> set[str]:
    with reg.db.read() as session:
        return set(session.scalars(select(Repository.name)))


def test_a_folder_that_is_refused_keeps_its_permissions_and_gets_no_file(
    place: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "srv" / "data"
    folder.mkdir(parents=True)
    (folder / "web").mkdir()
    folder.chmod(0o755)
    with pytest.raises(RestoreRefused, match=r"not empty \(web\)"):
        restored(place, tmp_path / "srv")
    assert folder.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in folder.iterdir()] == ["web"]
    (folder / "web").rmdir()
    restored(place, tmp_path / "srv")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_was_replaced_during_the_checks_is_left_alone(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, data_dir = restoring._check_target, tmp_path / "else" / "data"

    def slow(*arguments: Any) -> None:
        monkeypatch.setattr(restoring, "_check_target", real)
        shutil.rmtree(data_dir)
        data_dir.mkdir()
        (data_dir / "serve.lock").touch()

    monkeypatch.setattr(restoring, "_check_target", slow)
    with pytest.raises(RestoreRefused, match="deleted meanwhile"):
        restored(place, tmp_path / "else")
    assert [path.name for path in data_dir.iterdir()] == ["serve.lock"]


def test_what_a_restore_leaves_that_was_killed_during_the_checks_is_no_content(
    place: Path, tmp_path: Path
) -> None:
    data_dir = tmp_path / "else" / "data"
    data_dir.mkdir(parents=True)
    (data_dir / f"{LOOKED_AT}0123").touch()
    (data_dir / "worker.lock").touch()
    restored(place, tmp_path / "else")
    assert not (data_dir / f"{LOOKED_AT}0123").exists()


def test_a_lock_whose_file_its_last_holder_deleted_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, path = data_folder._lock, tmp_path / SERVE_LOCK

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(data_folder, "_lock", real)
        path.unlink()  # as the holder does, after this process has opened the file
        real(*arguments)

    monkeypatch.setattr(data_folder, "_lock", late)
    with (
        DataFolderLock(tmp_path, SERVE_LOCK, "one"),
        pytest.raises(DataFolderBusy),
        DataFolderLock(tmp_path, SERVE_LOCK, "other"),
    ):
        pass

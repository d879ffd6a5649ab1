"""Commands that only read change nothing, and work where nothing can be changed."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from deltahub.client.cli.commands import group
from deltahub.registry import Registry, Settings
from deltahub.registry.access import users
from deltahub.registry.db import schema
from deltahub.registry.errors import Unavailable
from support.needed import lacking
from support.registry.ingested import push_ingested
from support.registry.opened import DATABASE, caller, opened_registry, upload

READING = (
    ("fsck", "--read-data"),
    ("gc",),
    ("gc", "--lease", "0", "--grace", "0"),
    ("recompress",),
    ("user", "list"),
    ("user", "token", "list"),
    ("user", "org", "list"),
)
MOUNTED = (
    'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && ! touch "$1/x" 2>/dev/null'
    ' && shift && exec "$@"'
)
MAIN = "from deltahub.client.cli.main import main; main()"
# All commands in one process, because starting one takes most of the time.
MAIN_FOR_ALL = """
import json, sys
from deltahub.client.cli.main import main
for command in json.loads(sys.argv[1]):
    try:
        main(command)
    except SystemExit as end:
        assert end.code in (0, None), (command, end.code)
"""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub that was stopped: SQLite has removed its -wal and -shm."""
    folder = tmp_path_factory.mktemp("100% read only?")
    with opened_registry(folder) as reg:
        ann = caller(reg, "ann")
        push_ingested(reg, ann, "ann/model", {"notes.txt": b"trained at home\n" * 400})
        upload(reg, ann, b"waits for its commit" * 300)
    assert not (folder / "data" / f"{DATABASE}-wal").exists()
    return folder / "data"


@pytest.fixture
def data(pristine: Path, tmp_path: Path) -> Path:
    folder = tmp_path / pristine.parent.name / "data"
    shutil.copytree(pristine, folder)
    return folder


@pytest.fixture
def killed(data: Path, tmp_path: Path) -> Path:
    """A hub that was killed after a commit that is in the write-ahead log alone."""
    with Registry.open(Settings(data_dir=data)) as reg:
        users.create_user(reg, "bea")
        shutil.copytree(data, tmp_path / "killed")
    assert (tmp_path / "killed" / f"{DATABASE}-wal").stat().st_size > 0
    return tmp_path / "killed"


def deltahub(
    *arguments: object, within: tuple[object, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [*within, sys.executable, "-c", MAIN, *arguments]
    return subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, timeout=120, check=False
    )


def run_all_reading(data: Path, within: tuple[object, ...] = ()) -> None:
    commands = json.dumps([[*command, "--data-dir", str(data)] for command in READING])
    words = [*map(str, within), sys.executable, "-c", MAIN_FOR_ALL, commands]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done
    assert done.stdout.startswith("clean\n")


def read_only(folder: Path) -> tuple[object, ...]:
    """What runs a command in a mount namespace where the folder is read-only."""
    within = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNTED, "-", folder)
    if shutil.which("unshare") is None or subprocess.run([*within, "true"], check=False).returncode:
        lacking("this machine lets nobody mount a folder read-only (unshare --user --mount)")
    return within


def contents(folder: Path) -> dict[str, tuple[str, int, int]]:
    """path -> (SHA-256, mode, time of change) of all files and folders."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mode,
            path.stat().st_mtime_ns if path.is_file() else 0,
        )
        for path in sorted(folder.rglob("*"))
    }


def test_reading_commands_work_on_read_only_media(data: Path) -> None:
    before, within = contents(data), read_only(data)
    run_all_reading(data, within)
    assert contents(data) == before


def test_reading_commands_change_nothing_where_they_could(data: Path) -> None:
    for lock in data.glob("*.lock"):
        lock.unlink()
    before = contents(data)
    run_all_reading(data)
    assert contents(data) == before


def test_without_the_right_to_write_reading_commands_work(data: Path) -> None:
    folders = [data, *(path for path in data.rglob("*") if path.is_dir())]
    within: tuple[object, ...] = ()
    if os.geteuid() == 0:  # the superuser may write everywhere, unless that power is taken away
        within = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
    for folder in folders:
        folder.chmod(0o500)
    try:
        probe = subprocess.run([*map(str, within), "touch", data / "x"], capture_output=True)
        assert probe.returncode != 0
        before = contents(data)
        run_all_reading(data, within)
        assert contents(data) == before
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_commits_in_the_log_of_a_killed_hub_are_seen_on_read_only_media(killed: Path) -> None:
    within = read_only(killed)
    listed = deltahub("user", "list", "--data-dir", killed, "--json", within=within)
    assert [row["name"] for row in json.loads(listed.stdout)["items"]] == ["ann", "bea"]
    assert deltahub("fsck", "--read-data", "--data-dir", killed, within=within).returncode == 0


def test_a_log_that_cannot_be_read_is_said_and_never_left_out(killed: Path) -> None:
    (killed / f"{DATABASE}-shm").unlink()
    within = read_only(killed)
    refused = deltahub("fsck", "--data-dir", killed, within=within)
    assert refused.returncode == 2
    assert f"{DATABASE}-wal holds commits that are not in the database yet" in refused.stderr
    assert "copy both files to a folder that can be written" in refused.stderr
    assert deltahub("fsck", "--data-dir", killed).returncode == 0


def test_an_empty_log_hides_nothing(data: Path) -> None:
    (data / f"{DATABASE}-wal").touch()
    assert deltahub("fsck", "--data-dir", data, within=read_only(data)).returncode == 0


def test_beside_a_running_hub_its_latest_commit_is_seen(data: Path) -> None:
    with Registry.open(Settings(data_dir=data)) as hub:
        users.create_user(hub, "bea")
        with Registry.open_to_read(Settings(data_dir=data)) as reg:
            assert [user.name for user in users.list_users(reg)] == ["ann", "bea"]
            users.create_user(hub, "cleo")
            assert [user.name for user in users.list_users(reg)] == ["ann", "bea", "cleo"]


def test_what_was_opened_for_reading_writes_nothing(data: Path) -> None:
    with (
        Registry.open_to_read(Settings(data_dir=data)) as reg,
        pytest.raises(AssertionError, match="for reading"),
    ):
        users.create_user(reg, "bea")


@pytest.mark.parametrize("command", ["gc", "fsck", "recompress", "user list"])
def test_a_database_of_an_older_release_is_refused_and_not_migrated(
    data: Path, command: str
) -> None:
    with Registry.open(Settings(data_dir=data)) as reg, reg.db.write() as session:
        session.connection().exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    before = contents(data)
    refused = CliRunner().invoke(group, [*command.split(), "--data-dir", str(data), "--json"])
    assert refused.exit_code in (1, 2)
    error = json.loads(refused.stderr.splitlines()[-1])["error"]
    assert error["code"] == "schema_too_old"
    assert f"0001, and this release reads version {schema.head()}" in error["message"]
    assert contents(data) == before


def test_a_file_that_may_not_be_read_is_named(data: Path) -> None:
    (data / DATABASE).unlink()
    (data / DATABASE).mkdir()
    with pytest.raises(Unavailable, match=rf"{DATABASE} cannot be read: Is a directory"):
        Registry.open_to_read(Settings(data_dir=data))

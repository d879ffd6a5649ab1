"""Nobody but the hub's user reads the hub's secrets, whatever the umask and the folder's age."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE

import pytest

from deltahub.registry import Registry, Settings
from support.needed import lacking
from support.registry.opened import DATABASE, caller
from support.service.hub import served_hub

OPEN = """
import sys
from pathlib import Path
from deltahub.registry import Registry, Settings
Registry.open(Settings(data_dir=Path(sys.argv[1]))).close()
"""


@pytest.fixture(params=[0, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path, *patterns: str) -> dict[str, int]:
    found = {path.name: S_IMODE(path.stat().st_mode) for p in patterns for path in folder.glob(p)}
    assert len(found) >= len(patterns), (sorted(os.listdir(folder)), patterns)
    return found


def test_a_running_hub_keeps_its_secrets_to_itself(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with served_hub(tmp_path / "data") as hub:
            hub.create("admin/first")
            made = hub.commit("admin/first", {"a.txt": b"kept"})
            assert hub.wait_for_job(made["job_id"])["state"] == "done"
            found = modes(hub.data_dir, f"{DATABASE}*", "jobs.sqlite*", "signing.key")
            assert {f"{DATABASE}-wal", "jobs.sqlite"} <= found.keys()
            assert set(found.values()) == {0o600}, found
    finally:
        os.umask(before)


def test_a_new_database_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    (tmp_path / "data").mkdir(0o700)
    (tmp_path / "data").chmod(0o755)
    with Registry.open(Settings(data_dir=tmp_path / "data")) as reg:
        caller(reg, "ann")
        found = modes(reg.data_dir, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm")
    assert set(found.values()) == {0o600}, found


def test_a_database_outside_of_the_data_folder_is_private_too(tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "hub[1].db").touch(0o644)
    url = f"sqlite:///{tmp_path}/else/hub[1].db"
    with Registry.open(Settings(data_dir=tmp_path / "data", database_url=url)) as reg:
        caller(reg, "ann")
        assert set(modes(tmp_path / "else", "hub*", "*-wal", "*-shm").values()) == {0o600}
    assert not (tmp_path / "data" / DATABASE).exists()


def test_an_older_folder_is_mended_at_the_next_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Registry.open(Settings(data_dir=data)) as reg:
        caller(reg, "ann")
        for name in ("jobs.sqlite", "jobs.sqlite-wal", "signing.key", f"{DATABASE}.old"):
            (data / name).write_bytes(b"?")
        secrets = [*data.glob(f"{DATABASE}*"), *data.glob("jobs.sqlite*"), data / "signing.key"]
        assert len(secrets) == 7
        for path in secrets:
            path.chmod(0o644)
        folders = [data / "objects", data / "spool", data / "scratch"]
        for path in folders:
            path.chmod(0o755)
        Registry.open(Settings(data_dir=data)).close()  # beside the other one
        assert {S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
        assert {S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


def test_another_users_file_that_stays_readable_is_said(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        lacking("only the superuser makes another user's file")
    data = tmp_path / "data"
    Registry.open(Settings(data_dir=data)).close()
    key = data / "signing.key"
    key.write_bytes(bytes(32))
    key.chmod(0o644)
    os.chown(key, 65534, 65534)
    # The superuser without the power to change what others own.
    command = ["setpriv", "--bounding-set", "-fowner", sys.executable, "-c", OPEN, str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert f"other users of this machine may read {key}" in done.stderr
    assert "mode 0644 cannot be changed (Operation not permitted)" in done.stderr
    assert f"`chmod go= {key}`" in done.stderr
    assert S_IMODE(key.stat().st_mode) == 0o644

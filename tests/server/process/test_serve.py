"""The command `deltahub serve`: its first start, its worker, and how both end."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from deltahub.registry import Registry, Settings
from deltahub.registry.data_folder import (
    DATABASE_MOVE,
    GC,
    RESTORE,
    SERVE_LOCK,
    WORKER,
    WORKER_LOCK,
    DataFolderBusy,
    DataFolderLock,
    check_free,
)
from deltahub.server.process.supervisor import worker_supervisor
from support import forked
from support.service.hub import ServedHub, served_hub


def wait_until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def worker_of(hub: ServedHub, other_than: int = 0) -> int:
    """The process id of the worker that holds the data folder."""
    path = hub.data_dir / "worker.lock"

    def holder() -> int:
        words = path.read_text().split() if path.exists() else []
        return int(words[0]) if words else 0

    wait_until(lambda: holder() not in (0, other_than) and not is_gone(holder()))
    return holder()


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def ended_in_order(log: Path) -> bool:
    logged = log.read_text()
    assert logged.count("stopped") == 1, logged
    assert logged.endswith("DeltaHub has stopped\n"), logged
    return "ERROR" not in logged and "Traceback" not in logged


def test_the_first_start_makes_a_hub_that_works_and_prints_its_token_once(tmp_path: Path) -> None:
    data_dir = tmp_path / "with a space" / "data"
    log = tmp_path / "log"
    with log.open("wb") as sink, served_hub(data_dir, log=sink) as hub:
        token = hub.admin_token
        assert token.startswith("hf_")
        assert hub.url.startswith("http://127.0.0.1:")
        hub.create("admin/first")
        made = hub.commit("admin/first", {"a.txt": b"kept"})
        assert hub.wait_for_job(made["job_id"])["state"] == "done"
        revision = hub.call("GET", "/v1/repositories/admin/first/revision").json()
        assert revision["entries"][0]["state"] == "ingested"
        worker = worker_of(hub)
        maps = Path(f"/proc/{worker}/maps").read_text()
        assert "libtorch" not in maps
        os.killpg(hub.process.pid, signal.SIGTERM)  # as service managers do
        assert hub.process.wait(20) == 0
        wait_until(lambda: is_gone(worker))
    assert ended_in_order(log)
    with log.open("wb") as sink, served_hub(data_dir, log=sink) as hub:
        assert hub.admin_token == ""  # not printed again, but still valid
        assert hub.call("GET", "/v1/whoami", token=token).status == 200
        path = "/v1/repositories/admin/first/files/a.txt"
        assert hub.call("GET", path).body == b"kept"
        worker = worker_of(hub, other_than=worker)
        second = serve("--data-dir", data_dir, "--port", hub.url.rpartition(":")[2])
        assert second.returncode == 3
        assert f"another hub runs on the data folder {data_dir}" in second.stderr
        assert f"process {hub.process.pid}, `deltahub serve`" in second.stderr
        assert "--data-dir" in second.stderr
        wait_until(lambda: "worker is ready" in log.read_text())
        os.killpg(hub.process.pid, signal.SIGINT)  # as a terminal's Ctrl-C does
        assert hub.process.wait(20) == 0
        wait_until(lambda: is_gone(worker))
    assert ended_in_order(log)


def test_a_worker_dies_with_its_server_and_is_replaced_when_it_dies_itself(tmp_path: Path) -> None:
    with served_hub(tmp_path / "data") as hub:
        first = worker_of(hub)
        os.kill(first, signal.SIGKILL)
        second = worker_of(hub, other_than=first)
        hub.create("admin/later")
        made = hub.commit("admin/later", {"a": b"1"})
        assert hub.wait_for_job(made["job_id"])["state"] == "done"
        with pytest.raises(DataFolderBusy):
            check_free(hub.data_dir, SERVE_LOCK)
        hub.process.kill()  # only the server, which cannot stop the worker
        wait_until(lambda: is_gone(second))
        hub.process.wait(20)  # the worker may have ended before it
        check_free(hub.data_dir, SERVE_LOCK)


def test_a_worker_that_runs_apart_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Registry.open(Settings(data_dir=tmp_path / "data")) as reg,
        DataFolderLock(reg.data_dir, WORKER_LOCK, WORKER),
    ):
        supervisor = worker_supervisor(reg.data_dir, 1, 5)
        supervisor.start()
        wait_until(lambda: "another worker runs" in caplog.text)
        supervisor.stop()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_hub_killed_in_the_middle_of_a_job_finishes_it_after_a_restart(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    died = {"DELTAHUB_FAILPOINT": "ingest.publish.after_commit", "DELTAHUB_FAILPOINT_GROUP": "1"}
    with served_hub(tmp_path / "data", environment=died) as hub:
        token = hub.admin_token
        hub.create("admin/killed")
        job_id = hub.commit("admin/killed", {"model.bin": data})["job_id"]
        assert hub.process.wait(30) == -signal.SIGKILL
    with served_hub(tmp_path / "data", token=token) as hub:
        job = hub.wait_for_job(job_id)
        assert (job["state"], job["error"]) == ("done", None)
        revision = hub.call("GET", "/v1/repositories/admin/killed/revision").json()
        assert [entry["state"] for entry in revision["entries"]] == ["ingested"]
        path = "/v1/repositories/admin/killed/files/model.bin"
        assert hub.call("GET", path).body == data


def test_a_hub_whose_engine_file_is_damaged_finishes_its_jobs_and_stays_well(
    tmp_path: Path,
) -> None:
    data = os.urandom(3 << 20)
    died = {"DELTAHUB_FAILPOINT": "ingest.publish.after_commit", "DELTAHUB_FAILPOINT_GROUP": "1"}
    with served_hub(tmp_path / "data", environment=died) as hub:
        token = hub.admin_token
        hub.create("admin/damaged")
        job_id = hub.commit("admin/damaged", {"model.bin": data})["job_id"]
        assert hub.process.wait(30) == -signal.SIGKILL
        (hub.data_dir / "jobs.sqlite-wal").unlink()  # SQLite would repair the file from it
        (hub.data_dir / "jobs.sqlite").write_bytes(os.urandom(100_000))
    with served_hub(tmp_path / "data", token=token) as hub:
        job = hub.wait_for_job(job_id)
        assert (job["state"], job["error"]) == ("done", None)
        assert hub.call("GET", "/v1/health").status == 200
        assert list(hub.data_dir.glob("jobs.sqlite.damaged-*"))
        path = "/v1/repositories/admin/damaged/files/model.bin"
        assert hub.call("GET", path).body == data


def serve(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run("deltahub.server", *arguments)


def run(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.run("-m", module, *arguments, timeout_s=60)


@pytest.mark.parametrize("command", [GC, RESTORE, DATABASE_MOVE])
def test_beside_a_command_that_wants_the_folder_for_itself_neither_hub_nor_worker_starts(
    tmp_path: Path, command: str
) -> None:
    with Registry.open(Settings(data_dir=tmp_path / "data")) as reg, ExitStack() as stack:
        for name in (SERVE_LOCK, WORKER_LOCK):
            stack.enter_context(DataFolderLock(reg.data_dir, name, command))
        for module in ("deltahub.server", "deltahub.workers"):
            refused = run(module, "--data-dir", reg.data_dir)
            assert refused.returncode == 3
            assert f"`{command}` has the data folder {reg.data_dir} to itself" in refused.stderr
            assert f"process {os.getpid()}" in refused.stderr
            assert "another" not in refused.stderr


def test_a_port_that_is_taken_is_said_in_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = serve("--data-dir", tmp_path / "data", "--port", port)
    assert refused.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in refused.stderr
    assert "--port" in refused.stderr
    assert refused.stderr.startswith("DeltaHub is starting\n")
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "data").exists()


def test_a_data_folder_that_cannot_be_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    refused = serve("--data-dir", tmp_path / "file" / "data", "--port", 0)
    assert refused.returncode == 1
    assert "cannot open the data folder" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("command", ["deltahub.server", "deltahub.workers"])
def test_help_is_quick_and_imports_nothing_heavy(command: str) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['x', '--help']\n"
        "try:\n"
        f"    runpy.run_module({command!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "assert not {'fastapi', 'dbos', 'torch', 'sqlalchemy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)

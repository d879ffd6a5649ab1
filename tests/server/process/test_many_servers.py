"""`deltahub serve --workers N`: several processes behind one address."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from support.service.hub import ServedHub, served_hub


def servers_of(hub: ServedHub) -> list[int]:
    """The process ids of the servers that the command has started."""
    found = []
    for child in Path(f"/proc/{hub.process.pid}/task").glob("*/children"):
        for pid in map(int, child.read_text().split()):
            if b"deltahub.server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_an_upload_goes_on_at_any_server_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("wb") as sink,
        served_hub(tmp_path / "data", arguments=("--workers", "2"), log=sink) as hub,
    ):
        first = servers_of(hub)
        assert len(first) == 2
        hub.create("admin/m")
        data = os.urandom(3 << 20)
        name = sha256(data).hexdigest()
        for start in range(0, len(data), 1 << 20):  # each on a connection of its own
            answer = hub.call(
                "PUT",
                f"/v1/uploads/{name}",
                body=data[start : start + (1 << 20)],
                token=hub.admin_token,
                headers={"Content-Range": f"bytes {start}-{start + (1 << 20) - 1}/{len(data)}"},
            )
            assert answer.status in (200, 201, 202), answer.body
        made = hub.commit("admin/m", {"data.bin": data})
        assert hub.wait_for_job(made["job_id"])["state"] == "done"

        os.kill(first[0], signal.SIGKILL)
        with ThreadPoolExecutor(8) as pool:
            paths = ["/v1/repositories/admin/m/files/data.bin"] * 16
            answers = list(pool.map(lambda path: hub.call("GET", path).body, paths))
        assert answers == [data] * 16
        deadline = time.monotonic() + 30
        while len(servers_of(hub)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        hub.process.terminate()
        assert hub.process.wait(30) == 0
    assert log.read_text().endswith("DeltaHub has stopped\n")

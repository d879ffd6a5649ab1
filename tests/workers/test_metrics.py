"""A worker that runs apart answers Prometheus at an address of its own, if it is given one."""

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)

from deltahub.registry.jobs.worker_measures import FILE
from deltahub.registry.settings import WrongSetting
from deltahub.workers.settings import WorkerSettings
from support import forked
from support.forked import Fork
from support.service.hub import Hub, RunningHub, running_hub
from support.service.metrics import Scrape, scrape, scrape_with

SECRET = "a secret of the scraper"
JOBS = "deltahub_job_duration_seconds_count"


@contextmanager
def scraped_worker(
    data_dir: Path, address: str = "127.0.0.1:0", token: str = ""
) -> Iterator[tuple[Hub, Fork]]:
    """A worker process, and its metrics as a hub that has nothing else."""
    log = data_dir.parent / "worker.log"
    environment = {"DELTAHUB_SERVER_METRICS_TOKEN": token}
    words = ("-m", "deltahub.workers", "--data-dir", data_dir, "--metrics", address)
    with log.open("wb") as sink:
        process = Fork(*words, environment=environment, err=sink.fileno())
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"metrics are at (http://\S+)/metrics", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield Hub(found[1], token, data_dir), process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningHub, Hub, bytes]]:
    """A server, and a worker beside it that has stored one file of a user; and the file."""
    data = os.urandom(300_000)
    data_dir = tmp_path_factory.mktemp("worked") / "data"
    with running_hub(data_dir) as hub:
        (data_dir / FILE).write_text(hub.registry.measures.read().to_json())
        with scraped_worker(data_dir, token=SECRET) as (worker, _):
            alice = hub.user("alice-the-pusher")
            hub.create("alice-the-pusher/secret-model", token=alice, private=True)
            made = hub.commit("alice-the-pusher/secret-model", {"very-own.bin": data}, alice)
            assert hub.wait_for_job(made["job_id"])["state"] == "done"
            yield hub, worker, data


def test_a_worker_shows_its_jobs_its_store_and_its_process(
    worked: tuple[RunningHub, Hub, bytes],
) -> None:
    _, worker, data = worked
    found = scrape_with(worker, JOBS, 1, kind="ingest", outcome="done")
    # So that an alert sees the first failure come.
    assert [s for s in found.samples if s.name == JOBS and s.labels["outcome"] == "failed"]
    assert found.value("deltahub_store_bytes_total", {"process": "worker"}) > len(data)
    assert found.value("deltahub_database_write_duration_seconds_count") > 1
    assert {s.labels["process"] for s in found.samples if "process" in s.labels} == {"worker"}
    assert found.value("process_resident_memory_bytes") > 1 << 20
    assert found.value("process_open_fds") > 0
    said = {value for sample in found.samples for value in sample.labels.values()}
    assert [value for value in said if re.search("alice|secret|very-own", value)] == []


def test_the_server_of_its_data_folder_does_not_show_its_counts_as_well(
    worked: tuple[RunningHub, Hub, bytes],
) -> None:
    hub, _, _ = worked
    found = scrape(hub)
    assert JOBS not in found.names
    assert {s.labels["process"] for s in found.samples if "process" in s.labels} == {"server"}
    assert found.value("deltahub_part_up", {"part": "worker"}) == 1
    assert not (hub.data_dir / FILE).exists()


def test_both_formats_of_a_worker_are_whole(worked: tuple[RunningHub, Hub, bytes]) -> None:
    _, worker, _ = worked
    headers = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    answer = worker.call("GET", "/metrics", token=SECRET, headers=headers)
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    names = {family.name for family in open_metrics_families(answer.body.decode())}
    assert names == {family.name for family in scrape(worker).families}


def test_the_secret_of_the_servers_protects_the_metrics_and_not_the_health(
    worked: tuple[RunningHub, Hub, bytes],
) -> None:
    hub, worker, _ = worked
    for token in (None, SECRET[:-1], f"{SECRET}\xff", hub.admin_token):
        refused = worker.call("GET", "/metrics", token=token)
        assert (refused.status, refused.code) == (401, "unauthorized")
        assert "DELTAHUB_SERVER_METRICS_TOKEN" in refused.message
    basic = {"Authorization": f"Basic {SECRET}"}
    assert worker.call("GET", "/metrics", headers=basic).status == 401
    assert worker.call("GET", "/metrics", token=SECRET).status == 200
    healthy = worker.call("GET", "/healthz")
    assert (healthy.status, healthy.json()) == (200, {"status": "ok"})


def test_a_worker_answers_nothing_else(worked: tuple[RunningHub, Hub, bytes]) -> None:
    _, worker, _ = worked
    for path in ("/", "/v1/health", "/favicon.ico", "/metrics/", "/../metrics"):
        assert worker.call("GET", path, token=SECRET).code == "not_found"
    for path in ("/metrics", "/healthz"):
        refused = worker.call("POST", path, token=SECRET, body=b"")
        assert (refused.status, refused.code) == (405, "method_not_allowed")


def test_idle_connections_take_few_threads_of_a_worker(tmp_path: Path) -> None:
    with scraped_worker(tmp_path / "data") as (worker, process), ExitStack() as stack:
        wait_until(lambda: "worker is ready" in (tmp_path / "worker.log").read_text())
        before = n_threads(process)
        for _ in range(60):
            stack.enter_context(socket.create_connection(worker.address, timeout=20))
        wait_until(lambda: n_threads(process) > before)
        time.sleep(0.5)
        assert n_threads(process) <= before + 20
        stack.close()
        wait_until(lambda: n_threads(process) <= before + 2)
        # Without a secret, everybody may read who reaches the address.
        assert scrape(worker).value("process_open_fds") > 0
        assert "may read" not in (tmp_path / "worker.log").read_text()  # on loopback


def test_a_worker_without_a_secret_warns_where_others_reach_it(tmp_path: Path) -> None:
    with scraped_worker(tmp_path / "data", "0.0.0.0:0"):
        log = (tmp_path / "worker.log").read_text
        wait_until(lambda: "everybody who reaches 0.0.0.0:" in log())
        assert "set DELTAHUB_SERVER_METRICS_TOKEN" in log()


def test_a_port_that_is_taken_is_said_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = forked.run(
            "-m", "deltahub.workers", "--data-dir", tmp_path / "data", "--metrics", address
        )
    assert refused.returncode == 1
    assert f"cannot listen on {address} for the metrics: Address already in use" in refused.stderr
    assert "--metrics or DELTAHUB_WORKER_METRICS_ADDRESS" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("address", ["no host..:80", "8378", ":8378", "127.0.0.1:", "::1:8378"])
def test_a_malformed_address_is_a_wrong_setting(address: str, tmp_path: Path) -> None:
    environment = {"DELTAHUB_WORKER_METRICS_ADDRESS": address}
    refused = forked.run(
        "-m", "deltahub.workers", "--data-dir", tmp_path / "data", environment=environment
    )
    assert refused.returncode == 2
    assert f"DELTAHUB_WORKER_METRICS_ADDRESS={address}: " in refused.stderr
    assert "write HOST:PORT" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "data").exists()


def test_addresses_have_a_host_and_a_port() -> None:
    def parts(address: str) -> tuple[str, int] | None:
        return WorkerSettings(metrics_address=address).metrics_host_and_port

    assert parts("") is None
    assert parts("0.0.0.0:8378") == ("0.0.0.0", 8378)
    assert parts("[::1]:0") == ("::1", 0)
    assert parts("worker-1.example.com:65535") == ("worker-1.example.com", 65535)
    for wrong in ("a:65536", "a:-1", "a:\u0661", "http://a:80", "a:80/metrics", "a b:80", "a:80\n"):
        with pytest.raises(WrongSetting, match="HOST:PORT"):
            parts(wrong)


def test_the_worker_of_a_server_leaves_the_address_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("DELTAHUB_WORKER_METRICS_ADDRESS", f"127.0.0.1:{port}")
        with running_hub(tmp_path / "data", with_worker=True) as hub:
            hub.create("admin/model")
            made = hub.commit("admin/model", {"a.txt": b"stored"})
            assert hub.wait_for_job(made["job_id"])["state"] == "done"
            found: Scrape = scrape_with(hub, JOBS, 1, kind="ingest", outcome="done")
            assert found.value("deltahub_store_bytes_total", {"process": "worker"}) > 0


def n_threads(process: Fork) -> int:
    return len(os.listdir(f"/proc/{process.pid}/task"))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)

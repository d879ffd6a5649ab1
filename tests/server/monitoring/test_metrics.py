"""The metrics count what happened, name nobody, and are shown to operators alone."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)

from deltahub.registry.access import tokens
from deltahub.server.settings import ServerSettings
from support.service.hub import RunningHub, running_hub
from support.service.metrics import Scrape, scrape, scrape_with

SECRET = "a secret of the scraper"


@pytest.fixture
def own_hub(tmp_path: Path) -> Iterator[RunningHub]:
    settings = ServerSettings(stop_grace_s=2, metrics_token=SECRET)
    with running_hub(tmp_path / "data", server_settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningHub, bytes]]:
    """A hub that has taken, stored and given back one file, and the file."""
    data = os.urandom(300_000)
    with running_hub(tmp_path_factory.mktemp("worked") / "data", with_worker=True) as hub:
        alice = hub.user("alice-the-pusher")
        hub.create("alice-the-pusher/secret-model", token=alice, private=True)
        made = hub.commit("alice-the-pusher/secret-model", {"very-own.bin": data}, alice)
        assert hub.wait_for_job(made["job_id"])["state"] == "done"
        for path in (
            "/v1/repositories/alice-the-pusher/secret-model/files/very-own.bin",
            "/alice-the-pusher/secret-model/resolve/main/very-own.bin",
        ):
            assert hub.call("GET", path, token=alice).body == data
        yield hub, data


def test_counters_grow_by_what_a_push_and_two_pulls_did(worked: tuple[RunningHub, bytes]) -> None:
    hub, data = worked
    pull = "/v1/repositories/{namespace}/{name}/files/{path:path}"
    requests = "deltahub_http_requests_total"
    door = "/{namespace}/{name}/resolve/{revision}/{path:path}"
    found = scrape_with(hub, requests, 1, door="hf", route=door, method="GET", status="2xx")
    assert found.value(requests, {"door": "v1", "route": pull, "method": "GET"}) == 1
    assert found.value(requests, {"route": "/v1/uploads/{sha256}", "status": "2xx"}) == 1
    assert found.value(requests, {"route": "/v1/repositories", "method": "POST"}) == 1
    assert found.value("deltahub_http_request_duration_seconds_count", {"route": pull}) == 1
    assert found.value("deltahub_http_response_body_bytes_total", {"door": "hf"}) == len(data)
    assert found.value("deltahub_served_bytes_total", {"source": "rebuilt"}) == 2 * len(data)
    assert found.value("deltahub_received_bytes_total") > len(data)
    assert found.value("deltahub_sent_bytes_total") > 2 * len(data)
    assert found.value("deltahub_turns_asked_total", {"queue": "uploads"}) == 1
    assert found.value("deltahub_http_requests_in_flight") == 1  # the scrape itself
    written = {"process": "server", "direction": "written"}
    assert found.value("deltahub_store_bytes_total", written) == len(data)
    taken = {"process": "server", "operation": "take_file"}
    assert found.value("deltahub_store_operation_duration_seconds_count", taken) == 1
    committed = {"process": "server", "outcome": "committed"}
    assert found.value("deltahub_database_write_duration_seconds_count", committed) >= 3
    for result in ("hit", "miss"):
        recipes = {"cache": "recipes", "result": result}
        assert found.value("deltahub_cache_requests_total", recipes) == 1


def test_jobs_and_the_store_of_the_worker_are_counted(worked: tuple[RunningHub, bytes]) -> None:
    hub, data = worked
    name = "deltahub_job_duration_seconds_count"
    found = scrape_with(hub, name, 1, kind="ingest", outcome="done")  # written every 2 s
    assert found.value("deltahub_job_duration_seconds_sum") > 0
    read = {"process": "worker", "direction": "read"}
    assert found.value("deltahub_store_bytes_total", read) > len(data)
    assert abs(found.value("deltahub_worker_last_seen_timestamp_seconds") - time.time()) < 30
    assert found.value("deltahub_part_up") == 3


def test_no_label_names_a_user_a_repository_or_a_file(worked: tuple[RunningHub, bytes]) -> None:
    hub, _ = worked
    hub.call("GET", "/v1/secret-path")
    hub.call("BREW", "/secret-path")
    found = scrape_with(hub, "deltahub_http_requests_total", 1, route="none", status="4xx")
    said = {value for sample in found.samples for value in sample.labels.values()}
    for secret in ("alice", "secret", "very-own", "BREW"):
        assert [value for value in said if secret in value] == []
    assert all(value.isascii() and len(value) < 120 for value in said)
    assert len(found.samples) < 3000


def test_both_formats_are_whole(worked: tuple[RunningHub, bytes]) -> None:
    hub, _ = worked
    plain = scrape(hub)
    headers = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    answer = hub.call("GET", "/metrics", token=hub.admin_token, headers=headers)
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    families = list(open_metrics_families(answer.body.decode()))
    assert {family.name for family in families} == {
        family.name.removesuffix("_info") if "build" in family.name else family.name
        for family in plain.families
    }
    assert all(family.documentation for family in plain.families)
    # Of one family there is one, whatever the number of processes.
    assert len({family.name for family in plain.families}) == len(plain.families)


def test_totals_say_what_the_hub_holds(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    with running_hub(tmp_path / "data", with_worker=True) as hub:
        hub.create("admin/model")
        made = hub.commit("admin/model", {"model.bin": data})
        assert hub.wait_for_job(made["job_id"])["state"] == "done"
    # A server that starts counts at once; one that runs would show what it counted before.
    with running_hub(tmp_path / "data") as hub:
        found = scrape_with(hub, "deltahub_frames", 2)  # the file and its recipe
        assert found.value("deltahub_repositories") == 1
        assert found.value("deltahub_users") == 1
        assert found.value("deltahub_logical_bytes") == len(data)
        assert found.value("deltahub_stored_bytes", {"kind": "pack"}) >= len(data)
        assert found.value("deltahub_open_findings") == 0
        assert found.value("deltahub_jobs") == 0
        assert found.value("deltahub_disk_free_bytes") > 0
        decoded = found.value("deltahub_frame_decoded_bytes")
        stored = found.value("deltahub_frame_stored_bytes")
        assert len(data) < stored < decoded * 1.1
        assert found.value("deltahub_part_up", {"part": "worker"}) == 0
        later = hub.commit("admin/model", {"later.bin": b"later"})
        assert later["job_id"]
    with running_hub(tmp_path / "data") as hub:
        found = scrape(hub)
        queued = {"kind": "ingest", "lane": "store"}
        assert found.value("deltahub_jobs", queued | {"state": "queued"}) == 1
        oldest = found.value("deltahub_oldest_queued_job_timestamp_seconds", queued)
        assert abs(oldest - time.time()) < 60


def test_guests_and_users_may_not_read_them(own_hub: RunningHub) -> None:
    hub = own_hub
    writing = hub.user("alice")
    narrow = tokens.create_token(hub.registry, "admin", "write")
    assert hub.call("GET", "/metrics").status == 401
    assert hub.call("GET", "/metrics", token="dh_" + "0" * 40).status == 401
    assert hub.call("GET", "/metrics", token=SECRET[:-1]).status == 401
    assert hub.call("GET", "/metrics", token=f"{SECRET}\xff").status == 401
    for token in (writing, narrow):
        assert hub.call("GET", "/metrics", token=token).code == "forbidden"
    assert hub.call("GET", "/metrics", token=SECRET).status == 200
    assert hub.call("GET", "/metrics", token=hub.admin_token).status == 200
    # The secret is good for nothing else.
    assert hub.call("GET", "/v1/metrics", token=SECRET).status == 401
    assert hub.call("GET", "/v1/metrics", token=hub.admin_token).json()["requests"] > 5


def test_two_hubs_of_one_process_count_apart(own_hub: RunningHub, tmp_path: Path) -> None:
    own_hub.create("admin/one")
    with running_hub(tmp_path / "other") as other:
        route = {"route": "/v1/repositories", "method": "POST"}
        assert scrape(other).value("deltahub_http_requests_total", route) == 0
        scrape_with(own_hub, "deltahub_http_requests_total", 1, **route)


def test_what_reaches_no_route_is_counted(own_hub: RunningHub) -> None:
    with socket.create_connection(own_hub.address, timeout=20) as connection:
        connection.sendall(b"no HTTP\r\n\r\n")
        answer = connection.recv(1 << 16).decode()
    assert "405 Method Not Allowed" in answer
    assert "x-request-id: " in answer
    name = "deltahub_http_refused_requests_total"
    assert scrape(own_hub).value(name, {"code": "method_not_allowed"}) == 1


def test_a_scrape_without_a_database_says_so_in_time(own_hub: RunningHub) -> None:
    hub = own_hub
    damaged = hub.data_dir / "damaged"
    damaged.write_bytes(b"no database at all, " * 500)
    damaged.replace(hub.data_dir / "deltahub.sqlite3")
    for suffix in ("-wal", "-shm"):
        (hub.data_dir / f"deltahub.sqlite3{suffix}").unlink(missing_ok=True)
    hub.registry.db.close()
    began = time.monotonic()
    answer = hub.call("GET", "/metrics", token=SECRET)
    assert time.monotonic() - began < 8
    assert answer.status == 200
    found = Scrape(answer.body.decode())
    assert found.value("deltahub_part_up", {"part": "database"}) == 0
    assert found.value("deltahub_database_errors_total", {"code": "data_lost"}) >= 1
    assert "deltahub_repositories" not in found.names

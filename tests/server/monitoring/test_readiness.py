"""Whether a server is ready for requests, as load balancers ask it; and how it drains."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from deltahub.server.settings import ServerSettings
from support.service.hub import Answer, Hub, RunningHub, running_hub, served_hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    settings = ServerSettings(store_check_interval_s=0.1, stop_grace_s=2)
    with running_hub(tmp_path / "data", server_settings=settings) as running:
        yield running


def wait_for(hub: Hub, status: int) -> Answer:
    deadline = time.monotonic() + 20
    while (answer := hub.call("GET", "/readyz")).status != status:
        assert time.monotonic() < deadline, answer.body
        time.sleep(0.1)
    return answer


def parts_of(answer: Answer) -> list[str]:
    return [problem["part"] for problem in answer.json()["problems"]]


def test_a_hub_without_a_worker_is_live_and_ready(hub: RunningHub) -> None:
    for path, status in (("/healthz", "ok"), ("/readyz", "ready")):
        answer = hub.call("GET", path)
        assert (answer.status, answer.json()["status"]) == (200, status)
        head = hub.call("HEAD", path)
        assert (head.status, head.body) == (200, b"")
    assert hub.call("GET", "/v1/health").status == 503


def test_a_hub_whose_objects_are_not_there_is_not_ready_until_they_are(hub: RunningHub) -> None:
    assert hub.call("GET", "/readyz").status == 200
    objects = hub.data_dir / "objects"
    objects.rename(hub.data_dir / "elsewhere")
    answer = wait_for(hub, 503)
    assert (answer.json()["status"], parts_of(answer)) == ("not ready", ["store"])
    assert answer.headers["Retry-After"]
    assert hub.call("GET", "/healthz").status == 200
    (hub.data_dir / "elsewhere").rename(objects)
    assert wait_for(hub, 200).json()["problems"] == []


def test_a_hub_whose_database_is_damaged_is_not_ready_until_it_is_back(hub: RunningHub) -> None:
    database = hub.data_dir / "deltahub.sqlite3"
    with hub.registry.db.write_engine.connect() as connection:
        connection.execute(text("COMMIT"))
        connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    whole = database.read_bytes()
    replace_database(hub, b"no database at all, " * 500)
    assert parts_of(wait_for(hub, 503)) == ["database"]
    replace_database(hub, whole)
    assert wait_for(hub, 200).json()["problems"] == []


def replace_database(hub: RunningHub, data: bytes) -> None:
    new = hub.data_dir / "new"
    new.write_bytes(data)
    for suffix in ("-wal", "-shm"):
        (hub.data_dir / f"deltahub.sqlite3{suffix}").unlink(missing_ok=True)
    new.replace(hub.data_dir / "deltahub.sqlite3")  # at once: the hub's own chores read it
    hub.registry.db.close()  # so that the next request opens the file


def test_a_hub_whose_database_another_release_has_changed_is_not_ready(hub: RunningHub) -> None:
    set_version = text("UPDATE alembic_version SET version_num = :version")
    with hub.registry.db.write() as session:
        version = session.scalar(text("SELECT version_num FROM alembic_version"))
        session.execute(set_version, {"version": "9999"})
    (problem,) = wait_for(hub, 503).json()["problems"]
    assert problem["part"] == "database"
    assert "9999" in problem["message"]
    with hub.registry.db.write() as session:
        session.execute(set_version, {"version": version})
    assert wait_for(hub, 200).status == 200


def test_a_question_about_readiness_is_answered_from_memory_within_a_second(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_asked = 0
    find = hub.server.monitoring.readiness._ask

    def counted():  # type: ignore[no-untyped-def]
        nonlocal n_asked
        n_asked += 1
        return find()

    monkeypatch.setattr(hub.server.monitoring.readiness, "_ask", counted)
    began = time.monotonic()
    for _ in range(50):
        assert hub.call("GET", "/readyz").status == 200
    assert n_asked <= 1 + (time.monotonic() - began)


def test_a_database_that_hangs_makes_the_hub_unready_in_time(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang():  # type: ignore[no-untyped-def]
        time.sleep(6)
        return []

    monkeypatch.setattr(hub.server.monitoring.readiness, "_ask", hang)
    time.sleep(1.1)
    for _ in range(2):
        began = time.monotonic()
        answer = hub.call("GET", "/readyz")
        assert (answer.status, parts_of(answer)) == (503, ["database"])
        assert "has not answered for 2 s" in answer.json()["problems"][0]["message"]
        assert time.monotonic() - began < 4
    assert wait_for(hub, 200).status == 200


def test_a_server_that_drains_says_so_and_still_takes_requests(tmp_path: Path) -> None:
    environment = {"DELTAHUB_SERVER_DRAIN_S": "3", "DELTAHUB_SERVER_STOP_GRACE_S": "2"}
    with served_hub(tmp_path / "data", environment=environment, arguments=("--no-worker",)) as hub:
        assert wait_for(hub, 200).status == 200
        began = time.monotonic()
        hub.process.send_signal(signal.SIGTERM)
        answer = wait_for(hub, 503)
        assert parts_of(answer) == ["server"]
        hub.create("admin/late")  # on a new connection
        assert hub.call("GET", "/healthz").status == 200
        assert hub.process.wait(20) == 0
        assert time.monotonic() - began > 2.5


def test_a_second_signal_ends_the_drain(tmp_path: Path) -> None:
    environment = {"DELTAHUB_SERVER_DRAIN_S": "600"}
    with served_hub(tmp_path / "data", environment=environment, arguments=("--no-worker",)) as hub:
        hub.process.send_signal(signal.SIGTERM)
        wait_for(hub, 503)
        hub.process.send_signal(signal.SIGTERM)
        assert hub.process.wait(20) == 0

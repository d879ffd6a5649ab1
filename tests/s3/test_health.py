"""Health says that the bucket is away, at once and to everybody, and that it is back."""

import time
from pathlib import Path

from support.service.hub import Answer, Hub, served_hub
from support.service.metrics import scrape, scrape_with
from support.service.seaweedfs import SeaweedFS
from support.service.store_commands import output_of

# The hub asks its store every 5 s, and gives it 5 s to answer.
NOTICED_WITHIN_S = 30


def wait_for(hub: Hub, status: int) -> Answer:
    deadline = time.monotonic() + NOTICED_WITHIN_S
    while True:
        began = time.monotonic()
        answer = hub.call("GET", "/v1/health")
        assert time.monotonic() - began < 4, "health must not wait for the bucket"
        if answer.status == status:
            return answer
        assert time.monotonic() < deadline, answer.body
        time.sleep(0.2)


def test_health_follows_a_bucket_to_which_the_hub_moved_away_and_back(tmp_path: Path) -> None:
    home = tmp_path / "seaweedfs"
    home.mkdir()
    server = SeaweedFS(home)
    try:
        service = server.start()
        with served_hub(tmp_path / "data", environment=service.environment) as hub:
            wait_for(hub, 200)
            url = service.store_url()
            output_of(
                tmp_path / "data", "store", "copy", "--to", url, environment=service.environment
            )
            assert hub.call("GET", "/v1/health").status == 200
            hub.create("admin/model")
            hub.upload(b"in the bucket")
            taken = {"process": "server", "operation": "take_file"}
            name = "deltahub_store_operation_duration_seconds_count"
            assert scrape(hub).value(name, taken) == 1
            server.kill()
            answer = wait_for(hub, 503)
            assert hub.call("GET", "/readyz").json()["problems"] == [
                each for each in answer.json()["problems"] if each["part"] == "store"
            ]
            assert scrape_with(hub, "deltahub_part_up", 0, part="store")
            (problem,) = [each for each in answer.json()["problems"] if each["part"] == "store"]
            assert service.endpoint not in problem["message"]
            assert hub.call("GET", "/v1/health/live").status == 200
            server.start()
            wait_for(hub, 200)
    finally:
        server.kill()

"""A hub whose objects lie in a bucket: pushed, ingested, pulled, and started again."""

from pathlib import Path

from support.service.hub import served_hub
from support.service.seaweedfs import S3Service


def test_files_come_back_from_a_bucket(service: S3Service, store_url: str, tmp_path: Path) -> None:
    environment = {**service.environment, "DELTAHUB_STORE_URL": store_url}
    files = {"model.bin": bytes(range(256)) * 100_000, "config.json": b"{}"}
    with served_hub(tmp_path / "data", environment=environment) as hub:
        hub.create("admin/m")
        commit = hub.commit("admin/m", files)
        job = hub.wait_for_job(commit["job_id"])
        assert job["state"] == "done", job
        token = hub.admin_token
    assert [path for path in (tmp_path / "data/objects").rglob("*") if path.is_file()] == []
    # Where the objects lie is in the database, too: the setting is not needed again.
    with served_hub(tmp_path / "data", token=token, environment=service.environment) as hub:
        for path, data in files.items():
            answer = hub.call("GET", f"/v1/repositories/admin/m/files/{path}", token=token)
            assert answer.body == data

"""What was downloaded once comes from this machine's disk: the bucket is not asked again."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deltahub.client import Hub as Client
from support.models.tiny_models import base, finetune, to_file
from support.service.hub import ServedHub, served_hub
from support.service.seaweedfs import S3Service, s3_service

PATH = "model.safetensors"


@dataclass
class Away:
    """A hub whose bucket is away. files: what it holds, by repository."""

    hub: ServedHub
    files: dict[str, bytes]


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Away]:
    """Two models, a base and a fine-tune, were downloaded once. Then the bucket went away."""
    data_dir = tmp_path_factory.mktemp("hub") / "data"
    files = {"admin/base": to_file(base()), "admin/tuned": to_file(finetune(1e-5))}
    with s3_service() as service:
        environment = {**service.environment, "DELTAHUB_STORE_URL": service.make_bucket("away")}
        with served_hub(data_dir, environment=environment) as hub:
            token = hub.admin_token
            for name, data in files.items():
                hub.create(name)
                made = hub.commit(name, {PATH: data})
                assert hub.wait_for_job(made["job_id"])["state"] == "done"
                assert download(hub, token, name) == data
        with served_hub(data_dir, token=token, environment=environment) as hub:
            assert service.process is not None, "the test ends the service"
            service.process.kill()
            service.process.wait()
            yield Away(hub, files)


def download(hub: ServedHub, token: str, name: str, **headers: str) -> bytes:
    path = f"/v1/repositories/{name}/files/{PATH}"
    answer = hub.call("GET", path, token=token, headers=headers)
    assert answer.status in (200, 206), answer.body
    return answer.body


@pytest.mark.parametrize("name", ["admin/base", "admin/tuned"])
class TestSecondDownload:
    def test_whole(self, away: Away, name: str) -> None:
        assert download(away.hub, away.hub.admin_token, name) == away.files[name]

    def test_by_ranges(self, away: Away, name: str) -> None:
        whole, token = away.files[name], away.hub.admin_token
        for start, end in [(0, 1), (len(whole) // 2, len(whole) // 2 + 5000), (7, len(whole))]:
            part = download(away.hub, token, name, Range=f"bytes={start}-{end - 1}")
            assert part == whole[start:end]

    def test_by_frames(
        self, away: Away, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("DELTAHUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        with Client(away.hub.url, away.hub.admin_token) as client:
            client.pull(name, to=tmp_path / "pulled")
        assert (tmp_path / "pulled" / PATH).read_bytes() == away.files[name]


def test_the_copies_are_private(away: Away) -> None:
    folder = away.hub.data_dir / "cache"
    assert folder.stat().st_mode & 0o077 == 0
    copies = [path for path in folder.iterdir() if path.name.startswith("of-")]
    assert copies
    assert all(path.stat().st_mode & 0o077 == 0 for path in copies)


def test_a_damaged_copy_is_fetched_again(
    service: S3Service, store_url: str, tmp_path: Path
) -> None:
    environment = {**service.environment, "DELTAHUB_STORE_URL": store_url}
    data = to_file(base())
    with served_hub(tmp_path / "data", environment=environment) as hub:
        hub.create("admin/base")
        made = hub.commit("admin/base", {PATH: data})
        assert hub.wait_for_job(made["job_id"])["state"] == "done"
        assert download(hub, hub.admin_token, "admin/base") == data
        token = hub.admin_token
    for path in (tmp_path / "data/cache").glob("of-*"):
        damaged = bytearray(path.read_bytes())
        for at in range(8192, len(damaged), 1000):
            damaged[at] ^= 1
        path.write_bytes(damaged)
    with served_hub(tmp_path / "data", token=token, environment=environment) as hub:
        assert download(hub, token, "admin/base") == data

"""A bit of an upload changes on the hub's disk before its ingest: no door gives a wrong byte."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils._xet import abort_xet_session

from deltahub.client import Hub, JobFailed
from deltahub.client.errors import DataLost
from support.models.model_folders import contents, tuned_tensors, write_model
from support.service.hub import RunningHub, running_hub

NAME = "admin/m"
FILE = "model.safetensors"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pauses of milliseconds before Xet's client asks again, instead of minutes in all."""
    monkeypatch.setenv("HF_XET_CLIENT_RETRY_BASE_DELAY", "20ms")
    abort_xet_session()  # the next one reads the environment
    yield
    abort_xet_session()


def flip_a_bit(data_dir: Path, size: int) -> None:
    """Change the last byte of the upload of this size."""
    uploads = [path for path in (data_dir / "objects" / "landing").rglob("*") if path.is_file()]
    (path,) = [path for path in uploads if path.stat().st_size == size]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("is_read_first", [True, False])
def test_a_damaged_upload_is_refused_and_replaced_by_the_next_push(
    tmp_path: Path, other_machine: Callable[[], Path], is_read_first: bool
) -> None:
    folder = write_model(tmp_path / "model", tuned_tensors())
    data = (folder / FILE).read_bytes()
    data_dir = tmp_path / "data"
    with running_hub(data_dir) as server, Hub(server.url, server.admin_token) as hub:
        pushed = hub.push(folder, NAME, wait=False)
        flip_a_bit(data_dir, len(data))
        other_machine()
        if is_read_first:
            refused_by_every_door(server, hub, tmp_path)
    with (
        running_hub(data_dir, with_worker=True) as server,
        Hub(server.url, server.admin_token) as hub,
    ):
        if not is_read_first:
            # The hub finds the damage while it ingests, and says so to the one who waits.
            assert pushed.job_id is not None
            with pytest.raises(JobFailed, match="push the file again"):
                hub.wait_for_job(pushed.job_id)
            other_machine()
            refused_by_every_door(server, hub, tmp_path)
        assert hub.push(folder, NAME).state == "proved"
        other_machine()
        assert contents(hub.pull(NAME, to=tmp_path / "back")) == contents(folder)
        downloaded = server.call("GET", f"/v1/repositories/{NAME}/files/{FILE}")
        assert (downloaded.status, downloaded.body) == (200, data)


def refused_by_every_door(server: RunningHub, hub: Hub, tmp_path: Path) -> None:
    part = server.call(
        "GET", f"/v1/repositories/{NAME}/files/{FILE}", headers={"Range": "bytes=-1"}
    )
    assert (part.status, part.code) == (500, "data_lost")
    # The damage is known now, so not even the intact first MiB is sent.
    answer = server.call("GET", f"/v1/repositories/{NAME}/files/{FILE}")
    assert (answer.status, answer.code) == (500, "data_lost")
    with pytest.raises(DataLost, match="push the file again"):
        hub.pull(NAME, to=tmp_path / "nothing")
    with pytest.raises((HfHubHTTPError, RuntimeError)):
        hf_hub_download(NAME, FILE, endpoint=server.url, cache_dir=tmp_path / "hf", token=False)
    assert not list((tmp_path / "nothing").glob(FILE))
    states = {file["path"]: file["state"] for file in hub.info(NAME)["files"]}
    assert states[FILE] == "lost"

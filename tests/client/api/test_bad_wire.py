"""Damaged answers, wrong tokens, full disks: a clear error or the right bytes."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from deltahub.client import (
    DiskFull,
    Forbidden,
    Hub,
    HubError,
    HubUnreachable,
    NotFound,
    Unauthorized,
    VerificationFailed,
)
from deltahub.client.local.index import LocalIndex
from support.models.model_folders import contents
from support.service.client_process import deltahub
from support.service.hub import RunningHub
from support.service.tcp_proxy import damaging_proxy

MIB = 1 << 20


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base of 6 MiB and its fine-tune."""
    base, tuned = (tmp_path_factory.mktemp("wire") / name for name in ("base", "tuned"))
    rng = np.random.default_rng(5)
    tensors = {
        f"layer.{i}.weight": rng.normal(0, 0.02, (512, 512)).astype(np.float32) for i in range(6)
    }
    for folder in (base, tuned):
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        tensors = {
            key: value + rng.normal(0, 2e-5, value.shape).astype(np.float32)
            for key, value in tensors.items()
        }
    return base, tuned


@pytest.fixture(scope="module")
def pushed(
    hub_server: RunningHub, folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str]:
    """The names of the base and its fine-tune, pushed once for all tests of this file."""
    names = ("admin/wire-base", "admin/wire-tuned")
    place = tmp_path_factory.mktemp("pushed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTAHUB_CACHE", str(place / "deltahub"))
        with Hub(hub_server.url, hub_server.admin_token) as hub:
            hub.push(folders[0], names[0])
            hub.push(folders[1], names[1], base=names[0])
    return names


@pytest.fixture
def connect(hub_server: RunningHub) -> Iterator[Callable[..., Hub]]:
    """connect(url, token, patience_s): a Hub that is closed after the test."""
    with contextlib.ExitStack() as stack:

        def connect(
            url: str, token: str | None = hub_server.admin_token, patience_s: float = 5
        ) -> Hub:
            return stack.enter_context(Hub(url, token, patience_s=patience_s))

        yield connect


@pytest.mark.parametrize("is_base_here", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_are_found_and_fetched_again(
    hub_server: RunningHub,
    hub: Hub,
    pushed: tuple[str, str],
    folders: tuple[Path, Path],
    is_base_here: bool,
    seed: int,
    connect: Callable[..., Hub],
) -> None:
    if is_base_here:
        hub.pull(pushed[0])
    rng = np.random.default_rng(seed)
    # Behind the first, small answers: damage there is refused, as another test shows.
    # One flip, because a second one might hit the same bytes when they are sent again.
    at = int(rng.integers(100_000, 2_000_000))
    with damaging_proxy(hub_server.address, flip_at=(at,)) as proxy:
        report = connect(proxy.url).pull_with_report(pushed[1])
        assert proxy.is_spent
    assert contents(report.path) == contents(folders[1])


@pytest.mark.parametrize("at", [10, 300, 1_500, 3_000, 5_000, 9_000])
def test_damage_to_any_answer_ends_in_the_right_bytes_or_an_error(
    hub_server: RunningHub,
    pushed: tuple[str, str],
    folders: tuple[Path, Path],
    other_machine: Callable[[], Path],
    at: int,
    connect: Callable[..., Hub],
) -> None:
    machine = other_machine()
    with damaging_proxy(hub_server.address, flip_at=(at,)) as proxy:
        try:
            pulled = connect(proxy.url).pull(pushed[1])
        except HubError:
            pass
        else:
            assert contents(pulled) == contents(folders[1])
    for blob in (machine / "hf").glob("*/blobs/*"):
        if "." not in blob.name:
            assert blob.read_bytes() in contents(folders[1]).values()


def test_a_connection_that_keeps_breaking_is_outlasted(
    hub_server: RunningHub,
    pushed: tuple[str, str],
    folders: tuple[Path, Path],
    connect: Callable[..., Hub],
) -> None:
    cuts = tuple(range(200_000, 4_000_000, 600_000))
    with damaging_proxy(hub_server.address, cut_at=cuts) as proxy:
        pulled = connect(proxy.url).pull(pushed[1])
        assert proxy.is_spent
    assert contents(pulled) == contents(folders[1])


def test_an_upload_outlasts_a_connection_that_keeps_breaking(
    hub_server: RunningHub, hub: Hub, name: str, tmp_path: Path, connect: Callable[..., Hub]
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(np.random.default_rng(6).bytes(8 * MIB))
    cuts = (MIB, 3 * MIB, 5 * MIB)
    with damaging_proxy(hub_server.address, cut_upload_at=cuts) as proxy:
        pushed = connect(proxy.url).push(folder, name)
        assert proxy.is_spent
        # What was under way when a connection broke counts as sent, and never reached the hub.
        assert proxy.sent < 12 * MIB
    assert pushed.sent >= 8 * MIB
    assert contents(hub.pull(name)) == contents(folder)


def test_a_file_that_is_wrong_twice_is_an_error_and_leaves_nothing(
    hub_server: RunningHub,
    pushed: tuple[str, str],
    other_machine: Callable[[], Path],
    connect: Callable[..., Hub],
) -> None:
    machine = other_machine()
    flips = tuple(range(50_000, 200 * MIB, 100_000))
    with (
        damaging_proxy(hub_server.address, flip_at=flips) as proxy,
        pytest.raises(VerificationFailed, match="wrong twice"),
    ):
        connect(proxy.url).pull(pushed[0])
    assert not list((machine / "hf").rglob("model.safetensors"))
    assert not list((machine / "hf").rglob("*.deltahub-*"))


def test_a_damaged_base_on_this_machine_is_found_out_and_forgotten(
    hub: Hub, pushed: tuple[str, str], folders: tuple[Path, Path]
) -> None:
    pulled = hub.pull(pushed[0]) / "model.safetensors"
    blob = pulled.resolve()
    stat = blob.stat()
    data = bytearray(blob.read_bytes())
    data[2 * MIB] ^= 1
    blob.write_bytes(data)
    os.utime(blob, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # only the bytes show the damage
    report = hub.pull_with_report(pushed[1])
    assert contents(report.path) == contents(folders[1])


def test_a_damaged_base_is_not_coded_against(
    hub_server: RunningHub, hub: Hub, pushed: tuple[str, str], name: str, tmp_path: Path
) -> None:
    blob = (hub.pull(pushed[0]) / "model.safetensors").resolve()
    stat = blob.stat()
    data = bytearray(blob.read_bytes())
    data[2 * MIB] ^= 1
    blob.write_bytes(data)
    os.utime(blob, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    folder = tmp_path / "m"
    folder.mkdir()
    rng = np.random.default_rng(8)
    tensor = np.frombuffer(data[-MIB:], np.float32).reshape(512, 512)
    tensors = {f"layer.{i}.weight": tensor + np.float32(i) for i in range(2)}
    tensors["layer.2.weight"] = rng.normal(0, 0.02, (512, 512)).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    assert hub.push(folder, name, base=pushed[0]).state == "proved"
    assert contents(hub.pull(name)) == contents(folder)


def test_a_wrong_token_a_missing_one_and_one_without_the_right_to_write(
    hub_server: RunningHub,
    pushed: tuple[str, str],
    folders: tuple[Path, Path],
    connect: Callable[..., Hub],
) -> None:
    with pytest.raises(Unauthorized):
        connect(hub_server.url, "dh_wrong").whoami()
    with pytest.raises(Unauthorized):
        connect(hub_server.url, None).push(folders[0], "admin/anonymous")
    reader = connect(hub_server.url, hub_server.user("reader", "read"))
    with pytest.raises(Forbidden):
        reader.push(folders[0], "reader/mine")
    writer = connect(hub_server.url, hub_server.user("writer"))
    with pytest.raises(Forbidden):
        writer.push(folders[1], pushed[0])
    with pytest.raises((Forbidden, NotFound)):
        writer.push(folders[0], "admin/not-mine")


def test_a_hub_that_goes_away_in_mid_transfer_is_reported(
    hub_server: RunningHub, pushed: tuple[str, str], connect: Callable[..., Hub]
) -> None:
    def leave_in_the_middle(block: bytes, is_answer: bool) -> bytes:
        if is_answer and proxy.received > 200_000:
            threading.Thread(target=proxy.close).start()
        return block

    with damaging_proxy(hub_server.address, delay_s=0.005, edit=leave_in_the_middle) as proxy:
        hub = connect(proxy.url, patience_s=1)
        with pytest.raises(HubUnreachable):
            hub.pull(pushed[0])


def test_something_that_is_no_hub_is_reported(connect: Callable[..., Hub]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.recv(100)
                    connection.sendall(b"220 smtp.example.com ready\r\n")
                    connection.close()

        threading.Thread(target=talk, daemon=True).start()
        with pytest.raises(HubUnreachable, match="broke"):
            connect(f"http://127.0.0.1:{listener.getsockname()[1]}").whoami()
        listener.shutdown(socket.SHUT_RDWR)


def test_a_full_disk_is_one_clear_line_and_a_later_pull_succeeds(
    hub_server: RunningHub, hub: Hub, pushed: tuple[str, str], folders: tuple[Path, Path]
) -> None:
    """A limit on file sizes replaces a full disk: the same calls fail, without privileges."""
    script = (
        "import resource, sys; from deltahub.client.cli.main import main;"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({2 * MIB}, {2 * MIB})); main(sys.argv[1:])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, "pull", pushed[0]],
        env={**os.environ, "DELTAHUB_URL": hub_server.url, "DELTAHUB_TOKEN": "x"}
        | {"DELTAHUB_TOKEN": hub_server.admin_token},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 1
    assert "no room" in run.stderr
    assert "Traceback" not in run.stderr
    assert contents(hub.pull(pushed[0])) == contents(folders[0])


def test_disk_full_is_an_error_class(
    hub: Hub, pushed: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, before[1]))
    try:
        with pytest.raises(DiskFull, match="no room at"):
            hub.pull(pushed[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_two_pulls_at_once_in_two_processes_share_the_work(
    hub_server: RunningHub,
    hub: Hub,
    pushed: tuple[str, str],
    folders: tuple[Path, Path],
) -> None:
    environment = {"DELTAHUB_URL": hub_server.url, "DELTAHUB_TOKEN": hub_server.admin_token}
    results = []

    def pull() -> None:
        results.append(deltahub("pull", pushed[0], "--json", environment=environment))

    threads = [threading.Thread(target=pull) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.status for run in results] == [0, 0], [run.err for run in results]
    assert contents(Path(results[0].json()["path"])) == contents(folders[0])
    received = sum(run.json()["received"] for run in results)
    assert received < 1.5 * sum(len(data) for data in contents(folders[0]).values())


def test_a_stale_index_costs_a_download_and_nothing_else(
    hub: Hub, pushed: tuple[str, str], folders: tuple[Path, Path]
) -> None:
    blob = (hub.pull(pushed[0]) / "model.safetensors").resolve()
    blob.unlink()
    index = LocalIndex.default()
    index.close()
    assert contents(hub.pull(pushed[0])) == contents(folders[0])
    assert contents(hub.pull(pushed[1])) == contents(folders[1])

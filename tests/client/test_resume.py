"""A later process continues a killed push or pull, and keeps the bytes that arrived."""

import io
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from deltahub.client import Hub, Lines
from support.models.model_folders import contents
from support.service.client_process import deltahub, kill_when
from support.service.hub import RunningHub
from support.service.tcp_proxy import damaging_proxy

MIB = 1 << 20
N_TENSORS = 12


def weights(seed: int) -> dict[str, np.ndarray]:
    """12 MiB of F32 values like those of models: too many to transfer before the kill."""
    rng = np.random.default_rng(seed)
    return {
        f"layer.{i}.weight": rng.normal(0, 0.02, (512, 512)).astype(np.float32)
        for i in range(N_TENSORS)
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base and its fine-tune."""
    base, tuned = (tmp_path_factory.mktemp("resume") / name for name in ("base", "tuned"))
    tensors = weights(1)
    rng = np.random.default_rng(2)
    for folder in (base, tuned):
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        tensors = {
            key: value + rng.normal(0, 2e-5, value.shape).astype(np.float32)
            for key, value in tensors.items()
        }
    return base, tuned


def environment(hub: RunningHub, url: str | None = None) -> dict[str, str]:
    return {"DELTAHUB_URL": url or hub.url, "DELTAHUB_TOKEN": hub.admin_token}


def test_an_upload_goes_on_where_the_killed_process_stopped(
    hub_server: RunningHub, hub: Hub, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(np.random.default_rng(3).bytes(24 * MIB))
    with damaging_proxy(hub_server.address, delay_upload_s=0.005) as proxy:
        kill_when(
            lambda: proxy.sent > 8 * MIB,
            "push", str(folder), name, environment=environment(hub_server, proxy.url),
        )  # fmt: skip
    run = deltahub("push", str(folder), name, "--json", environment=environment(hub_server))
    assert run.status == 0, run.err
    assert 0 < run.json()["sent"] < 20 * MIB
    assert contents(hub.pull(name)) == contents(folder)


def test_differences_that_were_acknowledged_or_spooled_are_not_coded_again(
    hub_server: RunningHub, hub: Hub, name: str, folders: tuple[Path, Path], home: Path
) -> None:
    base, tuned = folders
    hub.push(base, f"{name}-base")
    arguments = ("push", str(tuned), name, "--base", f"{name}-base")
    with damaging_proxy(hub_server.address, delay_upload_s=0.01) as proxy:
        kill_when(
            lambda: proxy.sent > 2 * MIB, *arguments, environment=environment(hub_server, proxy.url)
        )
    (spooled,) = (home / "deltahub" / "spool").rglob("*.pack")
    before = spooled.stat().st_size
    # Each hub address has its own spool folder, and the proxy is another address.
    with damaging_proxy(hub_server.address, port=proxy.port) as again:
        shown = io.StringIO()
        with Hub(again.url, hub_server.admin_token) as later:
            pushed = later.push(tuned, name, base=f"{name}-base", progress=Lines(shown))
    assert 0 < pushed.sent < before - MIB
    assert "send what was coded before" in shown.getvalue()
    assert not list((home / "deltahub" / "spool").rglob("*.pack"))
    assert contents(hub.pull(name)) == contents(tuned)


@pytest.mark.parametrize("is_base_here", [False, True])
def test_a_rebuilt_file_goes_on_where_the_killed_process_stopped(
    hub_server: RunningHub,
    hub: Hub,
    name: str,
    folders: tuple[Path, Path],
    other_machine: Callable[[], Path],
    is_base_here: bool,
) -> None:
    base, tuned = folders
    hub.push(base, f"{name}-base")
    hub.push(tuned, name, base=f"{name}-base")
    machine = other_machine()
    if is_base_here:
        hub.pull(f"{name}-base")
    with damaging_proxy(hub_server.address, delay_s=0.01) as proxy:
        kill_when(
            lambda: proxy.received > 2 * MIB,
            "pull", name, environment=environment(hub_server, proxy.url),
        )  # fmt: skip
    blobs = machine / "hf" / ("models--" + name.replace("/", "--")) / "blobs"
    assert {path.suffix for path in blobs.iterdir()} == {
        ".deltahub-incomplete",
        ".deltahub-journal",
    }
    report = hub.pull_with_report(name)
    assert contents(report.path) == contents(tuned)
    assert report.reused >= MIB
    assert report.received + report.reused <= report.size + MIB
    assert len(list(blobs.iterdir())) == 1


def test_a_streamed_file_goes_on_where_the_killed_process_stopped(
    hub_server: RunningHub,
    hub: Hub,
    name: str,
    tmp_path: Path,
    other_machine: Callable[[], Path],
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    data = np.random.default_rng(4).bytes(80 * MIB)
    (folder / "weights.bin").write_bytes(data)
    hub.push(folder, name, wait=False)  # not ingested yet, so without a recipe
    other_machine()
    to = tmp_path / "to"
    api = hub._api
    entry = api.get_revision(name, "main").entries[0]
    with damaging_proxy(hub_server.address, delay_s=0.002) as proxy:
        kill_when(
            lambda: proxy.received > 40 * MIB,
            "pull", name, "--to", str(to), environment=environment(hub_server, proxy.url),
        )  # fmt: skip
    report = hub.pull_with_report(name, to=to)
    assert contents(to) == contents(folder)
    assert not (to / ".cache").exists()
    if entry.state == "landed" and report.reused:
        # The worker may have stored the file meanwhile: then there is a small recipe, too.
        assert report.received <= entry.size - 32 * MIB + 4096


@pytest.mark.parametrize("is_json", [False, True])
def test_ctrl_c_ends_a_pull_at_once_with_its_own_status(
    hub_server: RunningHub,
    hub: Hub,
    name: str,
    folders: tuple[Path, Path],
    other_machine: Callable[[], Path],
    is_json: bool,
) -> None:
    hub.push(folders[0], name)
    other_machine()
    with damaging_proxy(hub_server.address, delay_s=0.01) as proxy:
        run = kill_when(
            lambda: proxy.received > 2 * MIB,
            "pull", name, *(["--json"] if is_json else []),
            environment=environment(hub_server, proxy.url), with_signal=signal.SIGINT,
        )  # fmt: skip
    assert run.status == 130
    if is_json:
        assert run.error()["code"] == "interrupted"
    else:
        assert run.err.endswith("deltahub: interrupted; run it again to go on\n")
    assert hub.pull_with_report(name).reused >= MIB


def test_a_journal_that_lies_is_not_believed(
    hub_server: RunningHub,
    hub: Hub,
    name: str,
    folders: tuple[Path, Path],
    other_machine: Callable[[], Path],
) -> None:
    """As after a power failure that kept the journal's lines but lost the bytes."""
    hub.push(folders[0], name)
    machine = other_machine()
    with damaging_proxy(hub_server.address, delay_s=0.01) as proxy:
        kill_when(
            lambda: proxy.received > 4 * MIB,
            "pull", name, environment=environment(hub_server, proxy.url),
        )  # fmt: skip
    (work,) = (machine / "hf").rglob("*.deltahub-incomplete")
    work.write_bytes(bytes(work.stat().st_size))
    report = hub.pull_with_report(name)
    assert report.reused == 0
    assert contents(report.path) == contents(folders[0])


def test_who_pushes_what_another_is_just_pushing_waits_for_it(
    hub_server: RunningHub, hub: Hub, name: str, tmp_path: Path
) -> None:
    """Like fine-tunes that are pushed at the same time and share a tokenizer."""
    shared = np.random.default_rng(17).bytes(12 * MIB)
    for i in range(2):
        (tmp_path / f"{i}").mkdir()
        (tmp_path / f"{i}" / "tokenizer.json").write_bytes(shared)
        (tmp_path / f"{i}" / "config.json").write_text(f"{{{i}}}")
    with (
        damaging_proxy(hub_server.address, delay_upload_s=0.005) as proxy,
        ThreadPoolExecutor(1) as pool,
        Hub(proxy.url, hub_server.admin_token) as slow,
    ):
        first = pool.submit(slow.push, tmp_path / "0", f"{name}-0")
        while proxy.sent < 2 * MIB:
            assert not first.done()
            time.sleep(0.01)
        hub.push(tmp_path / "1", f"{name}-1")
        first.result()
    for i in range(2):
        assert contents(hub.pull(f"{name}-{i}")) == contents(tmp_path / f"{i}")


def test_a_file_that_is_cut_off_is_warned_of(
    hub_server: RunningHub, name: str, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    whole = (folders[0] / "model.safetensors").read_bytes()
    (tmp_path / "m").mkdir()
    for size in (3, len(whole) - 5):
        (tmp_path / "m" / "model.safetensors").write_bytes(whole[:size])
        run = deltahub("push", str(tmp_path / "m"), name, environment=environment(hub_server))
        assert run.status == 0
        assert "warning: model.safetensors is not a whole safetensors file" in run.err

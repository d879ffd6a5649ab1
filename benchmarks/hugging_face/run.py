"""Downloads by a stock client from a hub and from nginx: `python -m benchmarks.hugging_face.run`.

The hub keeps a base in packs and a fine-tune as its difference; nginx has the files themselves.
Client and server have a core each. The base is downloaded first: once a hub keeps it as it was
decoded for its fine-tunes, it is read there, too. Needs nginx.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks.hub import EmbeddedHub, HubFailed, run_cli, stop_in_order
from benchmarks.hugging_face.nginx import Nginx
from benchmarks.hugging_face.report import HUBS, NAMES, RUNS, Download, Downloads, report
from benchmarks.memory.pair import GIB, Pair, write_pair
from benchmarks.memory.sampler import cpu_s, tree

_MODEL: Final = "model.safetensors"
_FIRST_BYTES: Final = 100
# Jobs that follow a push are no part of a download.
_QUIET_SHARE: Final = 0.1  # CPU seconds a second
_QUIET_S: Final = 3
_PATIENCE_S: Final = 300
# A download that has come so far is under way.
_UNDER_WAY: Final = 16 << 20
# Prints the seconds of the download alone, and the digest of what came.
_CLIENT: Final = """
import hashlib, json, os, sys, time
from huggingface_hub import snapshot_download
began = time.perf_counter()
folder = snapshot_download(sys.argv[1])
spent = time.perf_counter() - began
with open(os.path.join(folder, "model.safetensors"), "rb") as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
print(json.dumps({"wall_s": spent, "digest": digest}))
"""
# Downloads again and again, until it is stopped.
_NEIGHBOUR: Final = """
import os, shutil, sys
from huggingface_hub import snapshot_download
while True:
    snapshot_download(sys.argv[1])
    shutil.rmtree(os.environ["HF_HOME"])
"""


def say(text: str) -> None:
    print(text, flush=True)


def run(gib: float, scratch_parent: Path | None, hub_is: str) -> bool:
    """Measures, prints and writes the figures; whether all promises were kept.

    gib: size of each of the two models. hub_is: one of HUBS. HubFailed where a download came back
    changed.
    """
    settings = {"DELTAHUB_SERVER_HOT_BASE_BYTES": "0"} if hub_is == "without" else {}
    with tempfile.TemporaryDirectory(prefix="deltahub-bench-", dir=scratch_parent) as name:
        scratch = Path(name)
        data, log = scratch / "data", scratch / "hub.log"
        with EmbeddedHub(data, log, **settings) as hub:
            say(f"generating and pushing a pair of {gib:g} GiB models ...")
            pair = write_pair(scratch / "models", int(gib * GIB))
            _push(hub, pair, scratch / "trainer")
            _wait_until_quiet(hub.pid)
            if hub_is == "running":
                found = _both(hub, pair, scratch)
        if hub_is != "running":
            with EmbeddedHub(data, log, token=hub.token, **settings) as hub:
                found = _both(hub, pair, scratch)
        _forget_pages(data / "objects")
        with EmbeddedHub(data, log, token=hub.token, **settings) as hub:
            first_s = _first_bytes(hub.url, pair.size_bytes)
        return report(found, first_s, pair.size_bytes, hub_is)


def _both(hub: EmbeddedHub, pair: Pair, scratch: Path) -> list[Downloads]:
    nginx = Nginx(_made(scratch / "nginx"))
    copying = Nginx(_made(scratch / "nginx-copying"), is_copying=True)
    for model, folder in zip(NAMES, (pair.base, pair.fine_tune), strict=True):
        files = {path.name: path for path in folder.iterdir()}
        nginx.add_model(hub.url, model, files)
        copying.add_model(hub.url, model, files)
    with nginx, copying:
        digests = (pair.base_sha256, pair.fine_tune_sha256)
        return [
            _downloads(hub, nginx, copying, model, sha256, scratch)
            for model, sha256 in zip(NAMES, digests, strict=True)
        ]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _push(hub: EmbeddedHub, pair: Pair, cache: Path) -> None:
    environment = hub.client_environment(cache)
    run_cli(["push", str(pair.base), NAMES[0]], environment)
    run_cli(["push", str(pair.fine_tune), NAMES[1], "--base", NAMES[0]], environment)
    shutil.rmtree(cache)


def _wait_until_quiet(server: int) -> None:
    """Returns once the server and its worker have done next to nothing for some seconds."""
    for _ in range(_PATIENCE_S // _QUIET_S):
        before = sum(map(cpu_s, tree(server)))
        time.sleep(_QUIET_S)
        if sum(map(cpu_s, tree(server))) - before < _QUIET_SHARE * _QUIET_S:
            return
    raise HubFailed(f"the hub was still at work {_PATIENCE_S} s after the last push")


def _downloads(
    hub: EmbeddedHub, nginx: Nginx, copying: Nginx, model: str, sha256: str, scratch: Path
) -> Downloads:
    plain = {"HF_HUB_DISABLE_XET": "1"}
    servers: dict[str, tuple[str, int, dict[str, str]]] = {
        "hub": (hub.url, hub.pid, plain),
        "hub, Xet": (hub.url, hub.pid, {}),
        "nginx": (nginx.url, nginx.pid, plain),
        "nginx, copying": (copying.url, copying.pid, plain),
    }
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("client and server need a core each; this machine has one")
    for _, pid, _ in servers.values():
        _pin_all(pid, cores[0])
    found: dict[str, list[Download]] = {name: [] for name in servers}
    decoding: list[float] = []
    before = _counters(hub)
    for i in range(RUNS):
        for name, (url, pid, settings) in servers.items():
            client = _Client(scratch / "client", model, cores[1], settings)
            found[name].append(_download(url, pid, sha256, client))
            last = found[name][-1]
            say(f"  {model} {i + 1}, {name}: {last.wall_s:.2f} s, server {last.cpu_s:.2f} CPU s")
        # By turns with the others: a machine that others use is slower at times.
        with _busy_neighbour(nginx, _Client(scratch / "client", model, cores[1], plain), cores[0]):
            decoding.append(_decoding_cpu_s(scratch / "data", model, cores[0]))
        say(f"  {model} {i + 1}, decoding alone: {decoding[-1]:.2f} CPU s")
    after = _counters(hub)
    names = ("rebuilt_bytes", "uploaded_bytes", "hot_base_read_bytes")
    return Downloads(found, decoding, *(after[name] - before[name] for name in names))


@contextmanager
def _busy_neighbour(nginx: Nginx, client: "_Client", core: int) -> Iterator[None]:
    """A client that downloads from nginx, both on the client's core.

    A core is slower while the other one works. The servers were measured beside a client, so what
    they are compared with is, too.
    """
    _pin_all(nginx.pid, client.core)
    process = subprocess.Popen(
        [sys.executable, "-c", _NEIGHBOUR, client.model],
        env=client.environment(nginx.url),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {client.core}),
    )
    try:
        until = time.monotonic() + _PATIENCE_S
        while _largest(client.home) < _UNDER_WAY:
            if process.poll() is not None or time.monotonic() > until:
                raise HubFailed("no download was under way beside the decoder")
            time.sleep(0.02)
        yield
        if process.poll() is not None:
            raise HubFailed("the downloads beside the decoder came to an end")
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(client.home, ignore_errors=True)  # it may not have come so far
        _pin_all(nginx.pid, core)


def _largest(folder: Path) -> int:
    """Bytes of the largest file of a download that has not ended."""
    largest = 0
    with suppress(FileNotFoundError):  # something has ended since
        for path in folder.rglob("*.incomplete"):
            largest = max(largest, path.stat().st_size)
    return largest


def _forget_pages(folder: Path) -> None:
    """Lets the system forget what it has of the files in memory."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _pin_all(pid: int, core: int) -> None:
    """The process and its children, as they are now."""
    for process in tree(pid):
        _pin(process, core)


def _pin(pid: int, core: int) -> None:
    for task in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(task), {core})


@dataclass(frozen=True)
class _Client:
    """home: a cache of its own, which is gone afterwards. settings: of its environment."""

    home: Path
    model: str
    core: int
    settings: dict[str, str]

    def environment(self, url: str) -> dict[str, str]:
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
            "HF_ENDPOINT": url,
            "HF_HOME": str(self.home),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            **self.settings,
        }


def _download(url: str, server: int, sha256: str, client: _Client) -> Download:
    before = sum(map(cpu_s, tree(server)))
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, client.model],
        env=client.environment(url),
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {client.core}),
    )
    spent = sum(map(cpu_s, tree(server))) - before
    if done.returncode != 0:
        raise HubFailed(f"the client failed at {url}:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if answer["digest"] != sha256:
        raise HubFailed(f"{url} gave other bytes")
    shutil.rmtree(client.home)
    return Download(answer["wall_s"], spent)


def _counters(hub: EmbeddedHub) -> dict[str, int]:
    found: dict[str, int] = json.loads(_get(hub.url, "/v1/metrics", hub.token))
    return found


def _get(url: str, path: str, token: str = "", **headers: str) -> bytes:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection.request("GET", path, headers=headers)
    body = connection.getresponse().read()
    connection.close()
    return body


def _first_bytes(url: str, size: int) -> list[float]:
    """Seconds to the first byte of ranges that begin anywhere."""
    places = random.Random(0)
    spent = []
    for i in range(_FIRST_BYTES):
        begin = places.randrange(size - 1)
        began = time.perf_counter()
        path = f"/{NAMES[i % 2]}/resolve/main/{_MODEL}"
        _get(url, path, Range=f"bytes={begin}-{begin}")
        spent.append(time.perf_counter() - began)
    return spent


def _decoding_cpu_s(data_dir: Path, model: str, core: int) -> float:
    """CPU seconds of decoding a model once, without a server."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.hugging_face.decoding", str(data_dir), model],
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    if done.returncode != 0:
        raise HubFailed(f"decoding failed:\n{done.stderr[-2000:]}")
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="size of each of two models")
    parser.add_argument("--scratch", type=Path, help="where to put models and data meanwhile")
    says = "; ".join(f"{name}: it {what}" for name, what in HUBS.items())
    parser.add_argument("--hub", choices=HUBS, default="started", help=says)
    arguments = parser.parse_args()
    stop_in_order()
    raise SystemExit(0 if run(arguments.gib, arguments.scratch, arguments.hub) else 1)


if __name__ == "__main__":
    main()

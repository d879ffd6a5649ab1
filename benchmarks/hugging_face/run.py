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
from statistics import median, quantiles
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.hub import EmbeddedHub, HubFailed, run_cli, stop_in_order
from benchmarks.hugging_face.nginx import Nginx
from benchmarks.memory.pair import GIB, Pair, write_pair
from benchmarks.memory.sampler import cpu_s, tree
from benchmarks.results_file import print_columns, write_results

PACKAGES: Final = ("deltahub", "huggingface_hub", "hf-xet", "fastapi", "uvicorn", "httptools")
RUNS: Final = 5
NAMES: Final = ("admin/base", "admin/tune")
_MODEL: Final = "model.safetensors"
_LEAST_REBUILT: Final = 0.95
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


@dataclass(frozen=True)
class Download:
    """One model once. cpu_s: of the server's processes."""

    wall_s: float
    cpu_s: float


def say(text: str) -> None:
    print(text, flush=True)


def run(gib: float, scratch_parent: Path | None, hot_base_bytes: int | None = None) -> bool:
    """Measures, prints and writes the figures; whether all promises were kept.

    gib: size of each of the two models. hot_base_bytes: of the hub's disk, for bases as they are
    decoded; None for its default. HubFailed where a download came back changed.
    """
    settings = {}
    if hot_base_bytes is not None:
        settings["DELTAHUB_SERVER_HOT_BASE_BYTES"] = str(hot_base_bytes)
    with tempfile.TemporaryDirectory(prefix="deltahub-bench-", dir=scratch_parent) as name:
        scratch = Path(name)
        data, log = scratch / "data", scratch / "hub.log"
        with EmbeddedHub(data, log, **settings) as hub:
            say(f"generating and pushing a pair of {gib:g} GiB models ...")
            pair = write_pair(scratch / "models", int(gib * GIB))
            _push(hub, pair, scratch / "trainer")
            _wait_until_quiet(hub.pid)
        # Hubs that have just started: no base is hot, as the first one's is since the push.
        with EmbeddedHub(data, log, token=hub.token, **settings) as hub:
            nginx = Nginx(_made(scratch / "nginx"))
            for model, folder in zip(NAMES, (pair.base, pair.fine_tune), strict=True):
                files = {path.name: path for path in folder.iterdir()}
                nginx.add_model(hub.url, model, files)
            with nginx:
                digests = (pair.base_sha256, pair.fine_tune_sha256)
                found = [
                    _downloads(hub, nginx, model, sha256, scratch)
                    for model, sha256 in zip(NAMES, digests, strict=True)
                ]
        _forget_pages(data / "objects")
        with EmbeddedHub(data, log, token=hub.token, **settings) as hub:
            first_s = _first_bytes(hub.url, pair.size_bytes)
        question = "hugging-face" if hot_base_bytes != 0 else "hugging-face-no-hot-bases"
        return _report(found, first_s, pair, question)


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


@dataclass
class Downloads:
    """Of one model. by: those of each server. decoding: CPU seconds of the frames alone, by turns
    with them. hot_bytes: of bases, read as they had been decoded before.
    """

    by: dict[str, list[Download]]
    decoding: list[float]
    rebuilt_bytes: int
    uploaded_bytes: int
    hot_bytes: int

    def wall_s(self, server: str) -> float:
        return median(one.wall_s for one in self.by[server])

    def cpu_s(self, server: str) -> float:
        return median(one.cpu_s for one in self.by[server])


def _downloads(hub: EmbeddedHub, nginx: Nginx, model: str, sha256: str, scratch: Path) -> Downloads:
    plain = {"HF_HUB_DISABLE_XET": "1"}
    servers: dict[str, tuple[str, int, dict[str, str]]] = {
        "hub": (hub.url, hub.pid, plain),
        "hub, Xet": (hub.url, hub.pid, {}),
        "nginx": (nginx.url, nginx.pid, plain),
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


def _report(found: list[Downloads], first_s: list[float], pair: Pair, question: str) -> bool:
    """Prints and writes the figures; whether all promises were kept. found: base, fine-tune."""
    n_bytes = 2 * pair.size_bytes
    gb = n_bytes / 1e9
    wall = {name: sum(one.wall_s(name) for one in found) for name in found[0].by}
    cpu = {name: sum(one.cpu_s(name) for one in found) for name in found[0].by}
    decode_s = sum(median(one.decoding) for one in found)
    rebuilt = sum(one.rebuilt_bytes for one in found)
    uploaded = sum(one.uploaded_bytes for one in found)
    least_cpu = cpu["nginx"] + decode_s
    figures = [
        (
            "share of bytes rebuilt, not as uploaded",
            rebuilt / (rebuilt + uploaded),
            _LEAST_REBUILT,
            True,
        ),
        ("wall time over that of nginx", wall["hub"] / wall["nginx"], 1.3, False),
        ("the same by Xet", wall["hub, Xet"] / wall["nginx"], 1.3, False),
        ("server CPU over that of nginx and decoding", cpu["hub"] / least_cpu, 1.15, False),
        ("the same by Xet", cpu["hub, Xet"] / least_cpu, 1.15, False),
        ("first byte, p99, ms", 1000 * quantiles(first_s, n=100)[98], 300, False),
    ]
    rows: list[dict[str, Any]] = [
        {
            "model": model,
            "server": name,
            "wall_s": round(one.wall_s(name), 3),
            "slowest_s": round(max(run.wall_s for run in runs), 3),
            "fastest_s": round(min(run.wall_s for run in runs), 3),
            "mb_per_s": round(pair.size_bytes / 1e6 / one.wall_s(name)),
            "server_cpu_s_per_gb": round(2 * one.cpu_s(name) / gb, 3),
            "decoding_cpu_s_per_gb": round(2 * median(one.decoding) / gb, 3),
        }
        for model, one in zip(NAMES, found, strict=True)
        for name, runs in one.by.items()
    ]
    print_columns(list(rows[0]), [[str(value) for value in row.values()] for row in rows])
    for name in wall:
        say(f"both, {name}: {n_bytes / 1e6 / wall[name]:.0f} MB/s, {cpu[name] / gb:.3f} CPU s/GB")
    kept = True
    for title, value, limit, is_at_least in figures:
        is_kept = value >= limit if is_at_least else value <= limit
        kept = kept and is_kept
        word = "at least" if is_at_least else "at most"
        say(f"{title}: {value:.3f} ({word} {limit:g}) {'pass' if is_kept else 'FAIL'}")
    base, tune = (f"{one.hot_bytes / 1e9:.2f} GB" for one in found)
    notes = [
        f"two models of {pair.size_bytes / GIB:g} GiB (benchmarks/data.md), one call of"
        f" snapshot_download each, plain HTTP but for `hub, Xet`; medians of {RUNS} runs by turns,"
        " those of the base before those of the fine-tune",
        "decoding alone, beside a client: the fine-tune's frames and the base's below them",
        "of bases as they had been decoded before the hub read"
        f" {base} for {2 * RUNS} downloads of the base, {tune} for as many of the fine-tune",
        "first bytes: of a hub that has just started, its objects not in memory",
        *(f"{title}: {value:.3f}" for title, value, _, _ in figures),
    ]
    say("\n".join(notes[:4]))
    write_results(question, rows, PACKAGES, notes)
    return kept


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
    parser.add_argument("--gib", type=float, default=1.0, help="size of each of two models")
    parser.add_argument("--scratch", type=Path, help="where to put models and data meanwhile")
    parser.add_argument(
        "--hot-base-bytes", type=int, help="of the hub's disk, for decoded bases; 0: none"
    )
    arguments = parser.parse_args()
    stop_in_order()
    raise SystemExit(0 if run(arguments.gib, arguments.scratch, arguments.hot_base_bytes) else 1)


if __name__ == "__main__":
    main()

"""The hub's memory under several stock clients at once: `python -m benchmarks.hugging_face.memory`.

Each client uploads a model of its own, all at the same time, once through Xet and once by LFS; then
each downloads one, all at the same time, in both ways. The worker ingests meanwhile. Exit status 1
if server or worker ever took more than 512 MiB.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.hub import EmbeddedHub, HubFailed, stop_in_order
from benchmarks.memory.sampler import Sampler, hub_roles
from benchmarks.results_file import print_columns, write_results

PACKAGES: Final = ("deltahub", "huggingface_hub", "hf-xet", "fastapi", "uvicorn", "httptools")
CLIENTS: Final = 8
LIMIT_MIB: Final = 512
_MIB: Final = 1 << 20
_ROLES: Final = ("server", "worker")
_WAYS: Final = {"Xet": {}, "plain HTTP": {"HF_HUB_DISABLE_XET": "1"}}
# A model of its own: BF16 words like weights, four tensors. Prints the SHA-256 of the file.
_UPLOAD: Final = """
import hashlib, json, pathlib, sys
import numpy as np
from huggingface_hub import HfApi
name, path, n_bytes, seed = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
size = n_bytes // 4 // 2048 * 2048
head = {str(i): {"dtype": "BF16", "shape": [size // 2048, 1024],
                 "data_offsets": [i * size, (i + 1) * size]} for i in range(4)}
text = json.dumps(head).encode()
digest, chance = hashlib.sha256(), np.random.default_rng(int(seed))
with path.open("wb") as file:
    def put(data):
        file.write(data)
        digest.update(data)
    put(len(text).to_bytes(8, "little") + text)
    left = 4 * size
    while left:
        words = chance.standard_normal(min(left, 1 << 22) // 2, dtype=np.float32) * 0.02
        piece = (words.view(np.uint32) >> 16).astype("<u2").tobytes()
        put(piece)
        left -= len(piece)
print("ready", flush=True)
sys.stdin.readline()
HfApi().create_repo(name)
HfApi().upload_file(repo_id=name, path_or_fileobj=str(path), path_in_repo="model.safetensors")
print(digest.hexdigest())
"""
_DOWNLOAD: Final = """
import hashlib, sys
from huggingface_hub import hf_hub_download
print("ready", flush=True)
sys.stdin.readline()
with open(hf_hub_download(sys.argv[1], "model.safetensors"), "rb") as file:
    print(hashlib.file_digest(file, "sha256").hexdigest())
"""


@dataclass(frozen=True)
class Step:
    """All clients at once: what they did, and the hub's peaks meanwhile, in MiB."""

    what: str
    wall_s: float
    peaks: dict[str, float]

    def row(self) -> dict[str, Any]:
        shown = {f"{role}_peak_mib": round(self.peaks[role]) for role in _ROLES}
        return {"step": self.what, "wall_s": round(self.wall_s, 1), **shown}


def run(clients: int, mib: int, scratch_parent: Path | None) -> bool:
    """Measures, prints and writes the figures; whether the hub stayed within the limit.

    mib: what each client uploads in each of the two ways. HubFailed where a download came back
    changed.
    """
    steps: list[Step] = []
    with tempfile.TemporaryDirectory(prefix="deltahub-bench-", dir=scratch_parent) as name:
        scratch = Path(name)
        with EmbeddedHub(scratch / "data", scratch / "hub.log") as hub:
            models: list[tuple[str, str]] = []  # names and digests
            for number, (way, settings) in enumerate(_WAYS.items()):
                names = [f"admin/model-{number}-{i}" for i in range(clients)]
                calls = [
                    [_UPLOAD, one, str(scratch / f"sent-{i}"), str(mib * _MIB), f"{number}{i}"]
                    for i, one in enumerate(names)
                ]
                step, digests = _at_once(f"upload, {way}", hub, scratch, calls, settings)
                steps.append(step)
                models += zip(names, digests, strict=True)
            for number, (way, settings) in enumerate(_WAYS.items()):
                # Half of what came in each way, so that both ways of download see all.
                wanted = models[number::2]
                calls = [[_DOWNLOAD, one] for one, _ in wanted]
                step, digests = _at_once(f"download, {way}", hub, scratch, calls, settings)
                if digests != [digest for _, digest in wanted]:
                    raise HubFailed(f"{step.what}: other bytes came back")
                steps.append(step)
    return _reported(steps, clients, mib)


def _at_once(
    what: str, hub: EmbeddedHub, scratch: Path, calls: list[list[str]], settings: dict[str, str]
) -> tuple[Step, list[str]]:
    """Every call by a client of its own, begun together; what each printed last."""
    homes = [scratch / f"home-{i}" for i in range(len(calls))]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", *call],
            env=_environment(hub, home, settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for call, home in zip(calls, homes, strict=True)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise HubFailed(f"{what}: {process.communicate()[1][-2000:]}")
        began = time.perf_counter()
        with Sampler(lambda: hub_roles(hub.pid)) as sampler, ThreadPoolExecutor(len(calls)) as pool:
            said = list(pool.map(lambda process: process.communicate("go\n"), processes))
        wall_s = time.perf_counter() - began
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, said, strict=True):
        if process.returncode != 0:
            raise HubFailed(f"{what}: a client failed:\n{errors[-2000:]}")
    for home in homes:
        shutil.rmtree(home, ignore_errors=True)  # not every client makes one
    peaks = {role: sampler.usage[role].peak_bytes / _MIB for role in _ROLES}
    step = Step(what, wall_s, peaks)
    print(json.dumps(step.row()), flush=True)
    return step, [output.split()[-1] for output, _ in said]


def _environment(hub: EmbeddedHub, home: Path, settings: dict[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return {
        **kept,
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": hub.token,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        **settings,
    }


def _reported(steps: list[Step], clients: int, mib: int) -> bool:
    rows = [step.row() for step in steps]
    print_columns(list(rows[0]), [[str(value) for value in row.values()] for row in rows])
    peak = {role: max(step.peaks[role] for step in steps) for role in _ROLES}
    notes = [
        f"{clients} clients at once, {mib} MiB each up in either way and down",
        f"peak_mib: RssAnon + RssShmem, sampled every 20 ms; at most {LIMIT_MIB} allowed",
    ]
    write_results("hugging-face-memory", rows, PACKAGES, notes)
    for role, value in peak.items():
        verdict = "within" if value <= LIMIT_MIB else "ABOVE"
        print(f"{role}: peak {value:.0f} MiB, {verdict} the limit of {LIMIT_MIB} MiB", flush=True)
    return max(peak.values()) <= LIMIT_MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS, help="how many at once")
    parser.add_argument("--mib", type=int, default=1024, help="size of each client's model")
    parser.add_argument("--scratch", type=Path, help="where to put models and data meanwhile")
    arguments = parser.parse_args()
    stop_in_order()
    is_within = run(arguments.clients, arguments.mib, arguments.scratch)
    raise SystemExit(0 if is_within else 1)


if __name__ == "__main__":
    main()

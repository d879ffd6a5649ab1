"""Uploads by Xet from a stock client: `python -m benchmarks.hugging_face.uploads`.

CPU time of the hub's server beside that of the client, a byte of a BF16 model. The client has
chunks to find, to hash, to compress and to send; the server undoes that and proves the file.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.hub import EmbeddedHub, HubFailed, stop_in_order
from benchmarks.memory.pair import GIB, write_pair
from benchmarks.memory.sampler import cpu_s
from benchmarks.results_file import print_columns, write_results

PACKAGES: Final = ("deltahub", "huggingface_hub", "hf-xet", "blake3", "lz4", "fastapi", "uvicorn")
RUNS: Final = 3
_FILE: Final = "model.safetensors"
_SMALL_BYTES: Final = 1 << 20
# Of the file's bytes, compressed by Xet: gaussian BF16 words take seven eighths.
_LEAST_SENT: Final = 0.8
# Prints the seconds of the upload alone: the imports before it take one, however large the file.
_CLIENT: Final = """
import json, sys, time
from huggingface_hub import HfApi
api = HfApi()
api.create_repo(sys.argv[1])
before, began = time.process_time(), time.perf_counter()
api.upload_file(repo_id=sys.argv[1], path_or_fileobj=sys.argv[2], path_in_repo="model.safetensors")
spent = {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - before}
print(json.dumps(spent))
"""


@dataclass(frozen=True)
class Upload:
    """One file once: seconds of the clock, and of the processors for each side."""

    wall_s: float
    client_cpu_s: float
    server_cpu_s: float


def run(gib: float, scratch_parent: Path | None) -> bool:
    """Measures, prints and writes the figures; whether the server needed less than the client.

    gib: size of the model. HubFailed where an upload failed, or did not go through Xet.
    """
    with tempfile.TemporaryDirectory(prefix="deltahub-bench-", dir=scratch_parent) as name:
        scratch = Path(name)
        pair = write_pair(scratch / "models", int(gib * GIB))
        os.sync()
        runs = []
        for i in range(RUNS):
            runs.append(_upload(pair.base / _FILE, pair.size_bytes, scratch / str(i)))
            # With these files still there the CPU time of the next one was higher, up to twice.
            shutil.rmtree(scratch / str(i))
            os.sync()
            last = runs[-1]
            print(
                f"  {i + 1}: {last.wall_s:.2f} s, CPU of the server {last.server_cpu_s:.2f} s,"
                f" of the client {last.client_cpu_s:.2f} s",
                flush=True,
            )
    n_bytes = pair.size_bytes
    wall_s = median(each.wall_s for each in runs)
    server = 1e9 / n_bytes * median(each.server_cpu_s for each in runs)
    client = 1e9 / n_bytes * median(each.client_cpu_s for each in runs)
    rows: list[dict[str, Any]] = [
        {
            "file_bytes": n_bytes,
            "mb_per_s": round(n_bytes / 1e6 / wall_s),
            "server_cpu_ns_per_byte": round(server, 2),
            "client_cpu_ns_per_byte": round(client, 2),
        }
    ]
    print_columns(list(rows[0]), [[str(value) for value in row.values()] for row in rows])
    is_kept = server < client
    verdict = f"CPU of the server over that of the client: {server / client:.3f} (below 1)"
    print(f"{verdict} {'pass' if is_kept else 'FAIL'}", flush=True)
    notes = [
        f"one BF16 model of {n_bytes / GIB:g} GiB (benchmarks/data.md) by upload_file, to its"
        f" commit, on loopback; medians of {RUNS} runs, each to a new hub; the worker's CPU time"
        " is not in it",
        verdict,
    ]
    write_results("hugging-face-uploads", rows, PACKAGES, notes)
    return is_kept


def _upload(file: Path, size: int, scratch: Path) -> Upload:
    scratch.mkdir()
    small = scratch / "small.bin"
    small.write_bytes(os.urandom(_SMALL_BYTES))
    with EmbeddedHub(scratch / "data", scratch / "hub.log") as hub:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": hub.token,
            "HF_HOME": str(scratch / "client"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        # What a server does once, at its first requests, is no part of this either.
        _client(environment, "admin/first", small)
        before, before_bytes = cpu_s(hub.pid), hub.traffic().received_bytes
        spent = _client(environment, "admin/model", file)
        server_s = cpu_s(hub.pid) - before
        sent = hub.traffic().received_bytes - before_bytes
    if not _LEAST_SENT * size < sent < size:
        raise HubFailed(f"the client sent {sent} bytes for a file of {size}: not by Xet")
    return Upload(spent["wall_s"], spent["cpu_s"], server_s)


def _client(environment: dict[str, str], name: str, file: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, name, str(file)],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise HubFailed(f"the client failed:\n{done.stderr[-2000:]}")
    spent: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=0.5, help="size of the model")
    parser.add_argument("--scratch", type=Path, help="where to put model and data meanwhile")
    arguments = parser.parse_args()
    stop_in_order()
    raise SystemExit(0 if run(arguments.gib, arguments.scratch) else 1)


if __name__ == "__main__":
    main()

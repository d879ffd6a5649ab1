"""`make bench-steps`: bytes and CPU time of a training step, beside what today's systems send.

Trains a small language model on the spot, at three rates: about 0.3, 1 and 3 % of its BF16 words
change in a step. Every result is decoded and compared. Then the same steps go through a hub, from
one process's memory to another's. Prints tables and writes two CSVs.
"""

import argparse
import hashlib
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
import xxhash
from blake3 import blake3

from benchmarks.hub import EmbeddedHub, stop_in_order
from benchmarks.results_file import print_columns, write_results
from benchmarks.steps.contenders import CONTENDERS, OURS, Contender
from benchmarks.steps.training import SMALL, Training, changed_share
from deltahub.client import Hub

RATES = (6e-7, 2.2e-6, 7e-6)
_REPEATS = 3
_PACKAGES = ("torch", "numpy", "zstandard", "xxhash", "blake3")
Weights = dict[str, torch.Tensor]


def measure(contender: Contender, before: Weights, after: Weights) -> dict[str, float]:
    """Bytes and CPU seconds of one step; each tensor's best of some repeats. Compares the bits."""
    n_sent = encode_s = decode_s = 0.0
    for name, tensor in after.items():
        old = before[name].view(torch.int16).numpy().view(np.uint16).reshape(-1)
        new = tensor.view(torch.int16).numpy().view(np.uint16).reshape(-1)
        if np.array_equal(old, new):
            continue  # no system sends it
        encoding, decoding = [], []
        for _ in range(_REPEATS):
            begin = time.process_time()
            sent = contender.encode(old, new, tuple(tensor.shape))
            middle = time.process_time()
            decoded = contender.decode(sent, old)
            encoding.append(middle - begin)
            decoding.append(time.process_time() - middle)
        assert np.array_equal(decoded, new), f"{contender.name}: {name} came back changed"
        n_sent += sum(map(len, sent))
        encode_s += min(encoding)
        decode_s += min(decoding)
    return {"sent_bytes": n_sent, "encode_cpu_s": encode_s, "decode_cpu_s": decode_s}


def entropy_bytes(before: Weights, after: Weights) -> float:
    """What a step takes at least, by Shannon, for one who knows of each tensor only how many of its
    words change, each independently of the others: which ones, and one bit for up or down.
    """
    bits = 0.0
    for name, tensor in after.items():
        count = tensor.numel()
        changed = int((before[name].view(torch.int16) != tensor.view(torch.int16)).sum())
        for part in (changed, count - changed):
            bits -= part * math.log2(part / count) if part else 0
        bits += changed
    return bits / 8


def measure_rate(training: Training, rate: float, count: int) -> tuple[list[dict], list[Weights]]:
    """(a row for each contender, the steps)."""
    steps = list(islice(training.steps(rate), count + 1))
    size = sum(2 * each.numel() for each in steps[0].values())
    share = mean(changed_share(*pair) for pair in pairwise(steps))
    entropy = median(entropy_bytes(*pair) for pair in pairwise(steps))
    rows = []
    for contender in CONTENDERS:
        each = [measure(contender, *pair) for pair in pairwise(steps)]
        row: dict[str, object] = {"rate": rate, "changed": round(share, 5), "way": contender.name}
        row |= {key: median(one[key] for one in each) for key in each[0]}
        rows.append(row | {"model_bytes": size, "steps": count, "entropy_bytes": entropy})
    return rows, steps


def measure_hub(rate: float, steps: list[Weights], folder: Path) -> dict[str, object]:
    """The same steps through a hub: bytes sent and received, CPU seconds on each side."""
    with EmbeddedHub(folder / "data", folder / "hub.log") as hub:
        environment = hub.client_environment(folder / "cache")
        os.environ.update(environment)
        with Hub() as trainer, Hub() as engine:
            trainer.push_step("admin/run", 0, steps[0])
            engine.pull_step("admin/run")
            time.sleep(5)  # jobs about the first step
            hub_before = cpu_of(hub.pid)
            pushes, pulls = [], []
            for number, weights in enumerate(steps[1:], 1):
                begin, wall = time.process_time(), time.monotonic()
                pushed = trainer.push_step("admin/run", number, weights)
                pushes.append((pushed.sent, time.process_time() - begin, time.monotonic() - wall))
                begin = time.process_time()
                pulled = engine.pull_step("admin/run")
                pulls.append((pulled.received, time.process_time() - begin))
                for name, tensor in weights.items():
                    same = torch.equal(
                        pulled.tensors[name].view(torch.int16), tensor.view(torch.int16)
                    )
                    assert same, f"{name} came back changed"
            time.sleep(2)
            hub_s = (cpu_of(hub.pid) - hub_before) / len(pushes)
            late = Hub()
            seed = late.pull_step("admin/run")
            behind = Hub()
            behind.pull_step("admin/run", 0)
            composed = behind.pull_step("admin/run")
            late.close()
            behind.close()
    return {
        "rate": rate,
        "push_bytes": median(each[0] for each in pushes),
        "push_cpu_s": median(each[1] for each in pushes),
        "push_wall_s": median(each[2] for each in pushes),
        "pull_bytes": median(each[0] for each in pulls),
        "pull_cpu_s": median(each[1] for each in pulls),
        "hub_cpu_s": hub_s,
        "composed_steps": len(pushes),
        "composed_bytes": composed.received,
        "bytes_by_step": sum(each[0] for each in pulls),
        "seed_bytes": seed.received,
        "model_bytes": seed.size,
    }


def cpu_of(pid: int) -> float:
    """CPU seconds that a process and all that it has started have taken."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid=,cputimes="], capture_output=True, text=True, check=True
    )
    rows = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    family = {pid}
    for _ in rows:
        family |= {each for each, parent, _ in rows if parent in family}
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for each in family:
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def hash_rates(weights: Weights) -> Iterator[tuple[str, float]]:
    """MB/s of CPU time of the hashes that a push takes, and of what others take."""
    data = max(weights.values(), key=torch.Tensor.numel).view(torch.uint8).numpy().reshape(-1).data
    for name, take in (
        ("BLAKE3 of tensors", lambda: blake3(data).digest()),
        ("SHA-256 of files", lambda: hashlib.sha256(data).digest()),
        ("XXH3-128", lambda: xxhash.xxh3_128(data).digest()),
    ):
        best = float("inf")
        for _ in range(20):
            begin = time.process_time()
            for _ in range(10):
                take()
            best = min(best, time.process_time() - begin)
        yield name, 10 * data.nbytes / best / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4, help="measured at each rate")
    parser.add_argument("--warm-up", type=int, default=40, help="steps of training before")
    arguments = parser.parse_args()
    stop_in_order()
    torch.set_num_threads(1)
    training = Training(SMALL, arguments.warm_up)
    rows: list[dict] = []
    through_hub: list[dict] = []
    for rate in RATES:
        found, steps = measure_rate(training, rate, arguments.steps)
        rows += found
        show(found)
        with tempfile.TemporaryDirectory() as folder:
            through_hub.append(measure_hub(rate, steps, Path(folder)))
        print({key: round(value, 3) for key, value in through_hub[-1].items()}, flush=True)
    notes = [f"{name}: {rate:.0f} MB/s of CPU time" for name, rate in hash_rates(steps[0])]
    print("\n".join(notes))
    write_results("steps", rows, _PACKAGES, notes)
    write_results("steps-hub", through_hub, _PACKAGES)


def show(rows: list[dict]) -> None:
    ours = next(row for row in rows if row["way"] == OURS.name)
    print(f"\nrate {ours['rate']:g}: {100 * ours['changed']:.2f} % of the words change")
    titles = ("", "% of the model", "of ours", "encode MB/s", "decode MB/s")
    lines = []
    for row in rows:
        size = row["model_bytes"]
        lines.append(
            (
                row["way"],
                f"{100 * row['sent_bytes'] / size:.3f}",
                f"{row['sent_bytes'] / ours['sent_bytes']:.2f}",
                f"{size / row['encode_cpu_s'] / 1e6:.0f}",
                f"{size / row['decode_cpu_s'] / 1e6:.0f}",
            )
        )
    print_columns(titles, lines)
    size, entropy = ours["model_bytes"], ours["entropy_bytes"]
    print(f"entropy of which words change, and whether up or down: {100 * entropy / size:.3f} %")


if __name__ == "__main__":
    main()

"""The figures of downloads by a stock client, from what was measured."""

from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Final

from benchmarks.memory.pair import GIB
from benchmarks.results_file import print_columns, write_results

PACKAGES: Final = ("deltahub", "huggingface_hub", "hf-xet", "fastapi", "uvicorn", "httptools")
RUNS: Final = 5
HUBS: Final = {
    "started": "has just started: no base is hot yet",
    "running": "took the push: the base is hot since",
    "without": "keeps no hot bases: every byte comes from frames",
}
NAMES: Final = ("admin/base", "admin/tune")
_LEAST_REBUILT: Final = 0.95


@dataclass(frozen=True)
class Download:
    """One model once. cpu_s: of the server's processes."""

    wall_s: float
    cpu_s: float


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


def report(found: list[Downloads], first_s: list[float], size_bytes: int, hub_is: str) -> bool:
    """Prints and writes the figures; whether all promises were kept.

    found: of the base, then of the fine-tune. first_s: to the first byte of each request.
    size_bytes: of each model. hub_is: one of HUBS.
    """
    n_bytes = 2 * size_bytes
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
            "mb_per_s": round(size_bytes / 1e6 / one.wall_s(name)),
            "server_cpu_s_per_gb": round(2 * one.cpu_s(name) / gb, 3),
            "decoding_cpu_s_per_gb": round(2 * median(one.decoding) / gb, 3),
        }
        for model, one in zip(NAMES, found, strict=True)
        for name, runs in one.by.items()
    ]
    print_columns(list(rows[0]), [[str(value) for value in row.values()] for row in rows])
    for name in wall:
        print(f"both, {name}: {n_bytes / 1e6 / wall[name]:.0f} MB/s, {cpu[name] / gb:.3f} CPU s/GB")
    kept = True
    for title, value, limit, is_at_least in figures:
        is_kept = value >= limit if is_at_least else value <= limit
        kept = kept and is_kept
        word = "at least" if is_at_least else "at most"
        print(f"{title}: {value:.3f} ({word} {limit:g}) {'pass' if is_kept else 'FAIL'}")
    base, tune = (f"{one.hot_bytes / 1e9:.2f} GB" for one in found)
    notes = [
        f"the hub: {HUBS[hub_is]}",
        f"two models of {size_bytes / GIB:g} GiB (benchmarks/data.md), one call of"
        f" snapshot_download each, plain HTTP but for `hub, Xet`; medians of {RUNS} runs by turns,"
        " those of the base before those of the fine-tune",
        "nginx, copying: without sendfile, as a server sends what it has made; no part of a figure",
        "decoding alone, beside a client: the fine-tune's frames and the base's below them",
        "of bases as they had been decoded before the hub read"
        f" {base} for {2 * RUNS} downloads of the base, {tune} for as many of the fine-tune",
        "first bytes: of a hub that has just started, its objects not in memory",
        *(f"{title}: {value:.3f}" for title, value, _, _ in figures),
    ]
    print("\n".join(notes[:6]), flush=True)
    write_results(f"hugging-face-{hub_is}", rows, PACKAGES, notes)
    return kept

"""Push and pull through the server: `python -m benchmarks.service.run [--gib 1]`."""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.hub import EmbeddedHub, stop_in_order
from benchmarks.memory.pair import GIB, write_pair
from benchmarks.results_file import print_columns, write_results
from benchmarks.service.scenario import Scenario, Step

ROLES = ("server", "worker", "client")
PACKAGES = ("deltahub", "fastapi", "uvicorn", "SQLAlchemy", "dbos", "numpy", "zstandard")


def say(text: str) -> None:
    print(text, flush=True)


def run_scenario(size_bytes: int, scratch_parent: Path | None, **environment: str) -> list[Step]:
    """Generates a pair, sends it through a fresh hub by every door; everything is removed.

    environment: variables of the hub.
    """
    need = 6 * size_bytes
    parent = scratch_parent or Path(tempfile.gettempdir())
    free = shutil.disk_usage(parent).free
    if free < need:
        raise SystemExit(f"{parent} has {free / GIB:.0f} GiB free, this needs {need / GIB:.0f}")
    with tempfile.TemporaryDirectory(prefix="deltahub bench ", dir=scratch_parent) as name:
        scratch = Path(name)
        # The hub first: if it does not start, nobody waits for gigabytes in vain.
        with EmbeddedHub(scratch / "data", scratch / "hub.log", **environment) as hub:
            say(f"generating a pair of {size_bytes / GIB:g} GiB models ...")
            pair = write_pair(scratch / "models", size_bytes)
            return Scenario(hub, pair, scratch).run(say)


def rows_of(steps: list[Step]) -> list[dict[str, Any]]:
    """One row a step: wall time, bytes moved, and CPU seconds and peak MiB of each role."""
    rows = []
    for step in steps:
        row: dict[str, Any] = {
            "step": step.name,
            "file_bytes": step.size_bytes,
            "moved_bytes": step.moved_bytes,
            "wall_s": round(step.wall_s, 2),
            "mb_per_s": round(step.mb_per_s),
        }
        for role in ROLES:
            usage = step.usage.get(role)
            row[f"{role}_cpu_s"] = round(usage.cpu_s, 2) if usage else ""
            row[f"{role}_peak_mib"] = round(usage.peak_bytes / (1 << 20), 1) if usage else ""
        rows.append(row)
    return rows


def print_steps(rows: list[dict[str, Any]]) -> None:
    titles = ["step", "MB/s", "moved MB"]
    titles += [f"{role} {what}" for role in ROLES for what in ("CPU s", "MiB")]
    cells = [
        [
            row["step"],
            str(row["mb_per_s"]),
            f"{row['moved_bytes'] / 1e6:.0f}",
            *(str(row[f"{role}_{what}"]) for role in ROLES for what in ("cpu_s", "peak_mib")),
        ]
        for row in rows
    ]
    print_columns(titles, cells)


def run(gib: float = 1.0, scratch: Path | None = None) -> None:
    rows = rows_of(run_scenario(int(gib * GIB), scratch))
    print_steps(rows)
    notes = [
        f"pair: {gib:g} GiB each, BF16, seed 0 (benchmarks/data.md)",
        "mb_per_s: 10^6 bytes of the file a second of wall time, start of the command included",
        "moved_bytes: at the server's sockets; peak_mib: RssAnon + RssShmem, sampled every 20 ms",
    ]
    write_results("service", rows, PACKAGES, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="size of each model")
    parser.add_argument("--scratch", type=Path, help="where to put models and data meanwhile")
    arguments = parser.parse_args()
    stop_in_order()
    run(arguments.gib, arguments.scratch)


if __name__ == "__main__":
    main()

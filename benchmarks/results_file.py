"""Results: one CSV a run, named by date, machine and commit, with all versions in its head."""

import csv
import datetime
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def processor() -> str:
    """The processor as the kernel tells it: sellers of machines give different ones one name."""
    told: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        told.setdefault(key.strip(), value.strip())
    name = told.get("model name", platform.machine())
    numbers = [f"{key.split()[-1]} {told[key]}" for key in ("cpu family", "model") if key in told]
    return " ".join([name, *numbers])


def commit() -> str:
    """The short commit of this checkout; `-dirty` behind it if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--match", "nothing"]
    try:
        done = subprocess.run(
            command, cwd=RESULTS.parent, capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return f"release-{metadata.version('deltahub')}"  # a tree without its history
    return done.stdout.strip()


def versions(packages: Sequence[str]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in packages:
        found[package] = metadata.version(package)
    return found


def write_results(
    question: str,
    rows: Sequence[dict[str, object]],
    packages: Sequence[str],
    notes: Sequence[str] = (),
    folder: Path = RESULTS,
) -> Path:
    """Writes the rows, whose keys are the columns, below a head of comment lines."""
    machine = re.sub(r"[^a-z0-9]+", "-", processor().lower()).strip("-")
    date = datetime.date.today().isoformat()
    path = folder / f"{date}-{machine}-{commit()}-{question}.csv"
    folder.mkdir(parents=True, exist_ok=True)
    head = [
        f"question: {question}",
        f"machine: {processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        f"commit: {commit()}",
        "versions: " + ", ".join(f"{k} {v}" for k, v in versions(packages).items()),
        *notes,
    ]
    with path.open("w", newline="") as file:
        for line in head:
            file.write(f"# {line}\n")
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote benchmarks/results/{path.name}", flush=True)
    return path


def print_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for people: the first column left, the others right."""
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]
    for row in [titles, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        print("  ".join(cells).rstrip(), flush=True)

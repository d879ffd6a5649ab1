"""Sizes and speeds on one small family of models: `python -m benchmarks.codecs.family`.

The codecs that a hub uses beside those that others have, on every fine-tune in every dtype, in one
run. `make bench-codecs` asks more questions of more pairs, whose training takes two hours.
"""

import argparse
import importlib.util
import os
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.codecs.measure import Failed, measure
from benchmarks.codecs.ours import OURS, PACKAGES
from benchmarks.models.sizes import BENCH
from benchmarks.models.train import BASE, model_folder, train_family
from benchmarks.results_file import print_columns, write_results
from benchmarks.rivals.alone import ZipNN, Zstd
from benchmarks.rivals.tensorx import TensorX
from deltahub.codecs.protocol import Effort

MODELS: Final = Path(os.environ.get("DELTAHUB_BENCH_MODELS", ".cache/models"))
BUFFER_BYTES: Final = 64 << 20
REPEATS: Final = 3
_FILE = "model.safetensors"
_OURS = tuple(codec.name for codec in OURS if codec.effort != Effort.MAX)
_RIVALS = (Zstd, TensorX, ZipNN)
_TITLES = ["codec", "size %", "encode MB/s", "(range)", "decode MB/s", "(range)"]
_WAYS = ("encode", "decode")


def run(models: Path = MODELS, results: Path | None = None) -> bool:
    """Trains what is missing, prints and writes the tables; whether all of ours came back.

    models: where trained models are kept. results: where the CSV goes, else benchmarks/results.
    SystemExit where ZipNN is not installed.
    """
    if importlib.util.find_spec("zipnn") is None:
        raise SystemExit("ZipNN is one of the codecs compared: run `make bench`, which installs it")
    names = train_family(BENCH, models, processes=2)
    rows: list[dict[str, Any]] = []
    for name in names[1:]:
        for dtype in BENCH.dtypes:
            folders = (model_folder(models, model, dtype) for model in (BASE, name))
            base, fine_tune = (folder / _FILE for folder in folders)
            print(f"\n{name}, {dtype}, {fine_tune.stat().st_size / 1e6:.0f} MB", flush=True)
            codecs = (*_OURS, *(rival.name for rival in _RIVALS))
            found = [_measured(codec, (base, fine_tune)) for codec in codecs]
            print_columns(_TITLES, [_shown(row) for row in found])
            rows += [{"fine_tune": name, "dtype": dtype, **row} for row in found]
    packages = sorted({package for rival in _RIVALS for package in rival.packages})
    notes = [
        f"MB/s: 10^6 bytes of the fine-tune a CPU second (user + system) on one core, buffers of"
        f" {BUFFER_BYTES >> 20} MiB; median, slowest and fastest of {REPEATS} after one more",
        "size: all bytes (ours: pack, index and recipe; others: header and streams)",
    ]
    folder = [] if results is None else [results]
    write_results("codecs", rows, [*PACKAGES, "torch", *packages], notes, *folder)
    return all(row["status"] == "verified" for row in rows if row["codec"] in _OURS)


def _measured(codec: str, files: tuple[Path, Path]) -> dict[str, Any]:
    row: dict[str, Any] = {"codec": codec, "file_bytes": "", "stored_bytes": "", "size_percent": ""}
    row |= {f"{way}_mb_per_s{of}": "" for way in _WAYS for of in ("", "_min", "_max")}
    try:
        size = measure("size", codec, files)
        speed = measure("speed", codec, files, repeats=REPEATS, buffer_bytes=BUFFER_BYTES)
    except Failed as exc:
        return {**row, "status": str(exc)}
    row["file_bytes"], row["stored_bytes"] = size["file_bytes"], size["stored_bytes"]
    row["size_percent"] = round(100 * size["stored_bytes"] / size["file_bytes"], 2)
    for way in _WAYS:
        speeds = [speed["bytes"] / 1e6 / max(s, 1e-9) for s in speed[f"{way}_cpu_s"]]
        for of, value in (("", median(speeds)), ("_min", min(speeds)), ("_max", max(speeds))):
            row[f"{way}_mb_per_s{of}"] = round(value)
    return {**row, "status": "verified"}


def _shown(row: dict[str, Any]) -> list[str]:
    if row["status"] != "verified":
        return [f"{row['codec']}: {row['status']}", *[""] * (len(_TITLES) - 1)]
    cells = [row["codec"], f"{row['size_percent']:.2f}"]
    for way in _WAYS:
        speed = f"{way}_mb_per_s"
        cells += [str(row[speed]), f"{row[f'{speed}_min']}-{row[f'{speed}_max']}"]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=MODELS)
    raise SystemExit(0 if run(parser.parse_args().models) else 1)


if __name__ == "__main__":
    main()

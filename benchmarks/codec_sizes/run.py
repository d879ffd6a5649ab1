"""Sizes and speeds of codecs on the trained fine-tunes: `python -m benchmarks.codec_sizes.run`."""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

from benchmarks.codec_sizes.contenders.all import ALL
from benchmarks.codec_sizes.contenders.contender import Contender
from benchmarks.codec_sizes.contenders.fm_delta_classes import FmDeltaClasses
from benchmarks.codec_sizes.measure import REPEATS, ContenderFailed, measure
from benchmarks.codec_sizes.model_file import ModelFile
from benchmarks.models.sizes import BENCH
from benchmarks.models.train import BASE, model_folder, train_family
from benchmarks.results_file import print_columns, write_results

MODELS = Path(".cache/models")
_FILE = "model.safetensors"
_TITLES = ["codec", "size %", "encode MB/s", "(range)", "decode MB/s", "(range)", "round trip"]


def run(models: Path = MODELS, repeats: int = REPEATS, results: Path | None = None) -> bool:
    """Trains what is missing, prints and writes the tables; whether our own rows are sound."""
    if importlib.util.find_spec("zipnn") is None:
        raise SystemExit("ZipNN is one of the codecs compared: run `make bench`, which installs it")
    names = train_family(BENCH, models, processes=2)
    rows: list[dict[str, Any]] = []
    for name in names[1:]:
        for dtype in BENCH.dtypes:
            base = model_folder(models, BASE, dtype) / _FILE
            fine_tune = model_folder(models, name, dtype) / _FILE
            print(f"\n{name}, {dtype}, {fine_tune.stat().st_size / 1e6:.0f} MB", flush=True)
            found = [_measured(contender, fine_tune, base, repeats) for contender in ALL]
            found.append(_ideal(fine_tune, base))
            print_columns(_TITLES, [_shown(row) for row in found])
            rows += [{"fine_tune": name, "dtype": dtype, **row} for row in found]
    packages = sorted({package for contender in ALL for package in contender.packages})
    notes = [f"{contender.name}: {contender.about}" for contender in (*ALL, FmDeltaClasses())]
    notes.append("MB/s: 10^6 bytes of the fine-tune a CPU second (user + system), on one core")
    notes.append(f"speeds: median, slowest and fastest of {repeats} after one that does not count")
    write_results("codec-sizes", rows, ["deltahub", "torch", *packages], notes, *_folder(results))
    return all(row["status"] == "verified" for row in rows if row["codec"] == ALL[0].name)


def _folder(results: Path | None) -> list[Path]:
    return [] if results is None else [results]


def _measured(contender: Contender, fine_tune: Path, base: Path, repeats: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "codec": contender.name,
        "file_bytes": fine_tune.stat().st_size,
        "encoded_bytes": "",
        "size_percent": "",
    }
    speeds = [f"{way}_mb_per_s{of}" for way in ("encode", "decode") for of in ("", "_min", "_max")]
    row |= dict.fromkeys(speeds, "")
    try:
        figures = measure(contender.name, fine_tune, base, repeats)
    except ContenderFailed as exc:
        return {**row, "status": str(exc)}
    row["encoded_bytes"] = figures.encoded_bytes
    row["size_percent"] = round(figures.size_percent, 2)
    for way, times_s in (("encode", figures.encode_cpu_s), ("decode", figures.decode_cpu_s)):
        middle, slowest, fastest = figures.mb_per_s(times_s)
        row[f"{way}_mb_per_s"] = round(middle)
        row[f"{way}_mb_per_s_min"] = round(slowest)
        row[f"{way}_mb_per_s_max"] = round(fastest)
    return {**row, "status": "verified"}


def _ideal(fine_tune: Path, base: Path) -> dict[str, Any]:
    size = FmDeltaClasses().ideal_size(ModelFile.load(fine_tune), ModelFile.load(base))
    file_bytes = fine_tune.stat().st_size
    return {
        "codec": FmDeltaClasses.name,
        "file_bytes": file_bytes,
        "encoded_bytes": size,
        "size_percent": round(100 * size / file_bytes, 2),
        "status": "a bound, not a coder",
    }


def _shown(row: dict[str, Any]) -> list[str]:
    cells = [row["codec"], f"{row['size_percent']:.2f}" if row["size_percent"] != "" else "-"]
    for way in ("encode", "decode"):
        middle = row.get(f"{way}_mb_per_s", "")
        cells.append(str(middle) if middle != "" else "-")
        has_range = middle != ""
        slowest, fastest = row.get(f"{way}_mb_per_s_min"), row.get(f"{way}_mb_per_s_max")
        cells.append(f"{slowest}-{fastest}" if has_range else "")
    return [*cells, row["status"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    arguments = parser.parse_args()
    raise SystemExit(0 if run(arguments.models, arguments.repeats) else 1)


if __name__ == "__main__":
    main()

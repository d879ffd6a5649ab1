"""Peak memory with large models: `python -m benchmarks.memory.run [--gib 8] [--s3]`.

Exit status 1 if the server, the worker or the client ever took more than 512 MiB.
"""

import argparse
from pathlib import Path

from benchmarks.hub import stop_in_order
from benchmarks.memory.pair import GIB
from benchmarks.results_file import write_results
from benchmarks.service.run import PACKAGES, ROLES, print_steps, rows_of, run_scenario, say
from benchmarks.store.service import s3_service

LIMIT_MIB = 512


# 300 of them hold a pair of 8 GiB, its uploads and what was deleted.
_VOLUME_MIB = 256


def run(gib: float = 8.0, scratch: Path | None = None, *, is_in_bucket: bool = False) -> bool:
    """Whether every role stayed within the limit in every step.

    is_in_bucket: the hub's objects lie in a SeaweedFS, not in its folder.
    """
    size_bytes = int(gib * GIB)
    if is_in_bucket:
        with s3_service(scratch, _VOLUME_MIB) as service:
            url = service.make_bucket("bench")
            environment = {"DELTAHUB_STORE_URL": url, **service.environment}
            rows = rows_of(run_scenario(size_bytes, scratch, **environment))
    else:
        rows = rows_of(run_scenario(size_bytes, scratch))
    print_steps(rows)
    notes = [
        f"pair: {gib:g} GiB each, one tensor of {gib / 4:g} GiB, BF16, seed 0 (benchmarks/data.md)",
        f"peak_mib: RssAnon + RssShmem, sampled every 20 ms; at most {LIMIT_MIB} allowed",
    ]
    write_results("memory-s3" if is_in_bucket else "memory", rows, PACKAGES, notes)
    is_within = True
    for role in ROLES:
        peaks = [row[f"{role}_peak_mib"] for row in rows if row[f"{role}_peak_mib"] != ""]
        peak = max(peaks)
        verdict = "within" if peak <= LIMIT_MIB else "ABOVE"
        say(f"{role}: peak {peak:.0f} MiB, {verdict} the limit of {LIMIT_MIB} MiB")
        is_within = is_within and peak <= LIMIT_MIB
    return is_within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=8.0, help="size of each model")
    parser.add_argument("--scratch", type=Path, help="where to put models and data meanwhile")
    parser.add_argument("--s3", action="store_true", help="objects in a SeaweedFS, which it starts")
    arguments = parser.parse_args()
    stop_in_order()
    raise SystemExit(0 if run(arguments.gib, arguments.scratch, is_in_bucket=arguments.s3) else 1)


if __name__ == "__main__":
    main()

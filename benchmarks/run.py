"""`make bench`: the codecs beside others, speed through the server, peak memory."""

import argparse
from pathlib import Path

from benchmarks.codecs import family
from benchmarks.hub import stop_in_order
from benchmarks.memory import run as memory
from benchmarks.service import run as service


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--gib", type=float, default=8.0, help="size of the models that memory is measured with"
    )
    parser.add_argument("--scratch", type=Path, help="folder with room for six times that size")
    arguments = parser.parse_args()
    stop_in_order()
    print("== codecs: sizes and speeds on three fine-tunes in three dtypes", flush=True)
    is_sound = family.run()
    print("\n== service: push and pull through the server", flush=True)
    service.run(scratch=arguments.scratch)
    print("\n== memory: peaks of server, worker and client", flush=True)
    is_bounded = memory.run(arguments.gib, arguments.scratch)
    raise SystemExit(0 if is_sound and is_bounded else 1)


if __name__ == "__main__":
    main()

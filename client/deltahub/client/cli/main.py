"""The entry point of `deltahub`: it handles Ctrl-C before it imports anything else."""

import io
import os
import sys
from collections.abc import Sequence

from deltahub.client.interrupts import end_on_interrupt, raise_on_interrupt


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the `deltahub` command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    end_on_interrupt(is_json="--json" in given)
    # Frames are encoded in parallel: more threads in linear algebra would only compete.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding lacks is shown as an escape, as stderr does it.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from deltahub.client.cli.commands import group

        group(args=given, prog_name="deltahub")
    finally:
        raise_on_interrupt()


if __name__ == "__main__":
    main()

"""The `deltahub` command's first step: everything else is loaded when Ctrl-C is in hand."""

import os
import sys
from collections.abc import Sequence

from deltahub.client.interrupts import end_on_interrupt, raise_on_interrupt


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the `deltahub` command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    end_on_interrupt(is_json="--json" in given)
    # Frames are coded side by side: threads of linear algebra would only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from deltahub.client.cli.group import group

        group(args=given, prog_name="deltahub")
    finally:
        raise_on_interrupt()


if __name__ == "__main__":
    main()

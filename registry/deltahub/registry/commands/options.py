"""Options that the hub's commands share."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click


def data_dir_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option --data-dir, as the argument data_dir: Path."""
    return click.option(
        "--data-dir",
        envvar="DELTAHUB_DATA_DIR",
        default="deltahub-data",
        show_default=True,
        type=click.Path(file_okay=False, path_type=Path),
        help="The hub's data folder (DELTAHUB_DATA_DIR).",
    )(command)


class _Seconds(click.ParamType[float]):
    """A time in seconds that dates can be moved by."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds <= _MOST_SECONDS:  # also not a number
            self.fail(f"{value!r} is no number of seconds from 0 to {_MOST_SECONDS}", param, ctx)
        return seconds


# A hundred years.
_MOST_SECONDS: Final = 100 * 365 * 86400
SECONDS: Final = _Seconds()


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option --json, as the argument as_json: bool."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)

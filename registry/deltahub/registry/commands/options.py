"""Options that the hub's commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option --json, as the argument as_json: bool."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)

"""Shared by all commands: options of the hub, results as text or JSON, exit statuses."""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click

from deltahub.client.errors import (
    Forbidden,
    HubError,
    HubUnreachable,
    InvalidArgument,
    NotFound,
    Unauthorized,
    VerificationFailed,
)
from deltahub.client.escapes import printable
from deltahub.client.hub import Hub
from deltahub.client.names import named_revision
from deltahub.client.progress import Bars, Lines, Progress, Silent

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_REFUSED_TOKEN = 4
EXIT_UNREACHABLE = 5
EXIT_NOT_VERIFIED = 6

_STATUS: tuple[tuple[type[HubError], int], ...] = (
    (NotFound, EXIT_NOT_FOUND),
    (Unauthorized, EXIT_REFUSED_TOKEN),
    (Forbidden, EXIT_REFUSED_TOKEN),
    (HubUnreachable, EXIT_UNREACHABLE),
    (VerificationFailed, EXIT_NOT_VERIFIED),
    (InvalidArgument, EXIT_USAGE),
)


def exit_status(error: HubError) -> int:
    """The exit status for an error, by its class."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), EXIT_FAILED)


def fail(code: str, message: str, status: int, *, is_json: bool) -> NoReturn:
    """Ends the process with one line on stderr."""
    print(error_line(code, message, is_json=is_json), file=sys.stderr)
    sys.exit(status)


def error_line(code: str, message: str, *, is_json: bool) -> str:
    """An error as one line of text, or of JSON with --json."""
    if is_json:
        return json.dumps({"error": {"code": code, "message": message}})
    return f"deltahub: {printable(message)}"


class Output:
    """Prints a command's result and its progress."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json

    def progress(self) -> Progress:
        """Bars on a terminal, lines in a pipe, nothing with --json."""
        if self.is_json:
            return Silent()
        return Bars() if sys.stderr.isatty() else Lines()

    def result(self, value: Any, *lines: str) -> None:
        """Prints the value as JSON with --json, else the lines, escaped for a terminal."""
        if self.is_json:
            click.echo(json.dumps(_plain(value), indent=2))
        else:
            click.echo("\n".join(map(printable, lines)))

    def note(self, line: str) -> None:
        """Prints a line about the result to stderr, unless with --json."""
        if not self.is_json:
            click.echo(printable(line), err=True)


def hub_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --url, --token and --json; the command gets `hub` and `output`."""

    @click.option("--url", help="The hub's address; by default DELTAHUB_URL or `login`'s.")
    @click.option("--token", help="Your token; by default DELTAHUB_TOKEN or `login`'s.")
    @click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
    @functools.wraps(command)
    def with_hub(
        *args: Any, url: str | None, token: str | None, is_json: bool, **more: Any
    ) -> None:
        with Hub(url, token) as hub:
            command(*args, hub=hub, output=Output(is_json=is_json), **more)

    return with_hub


def confirm(what: str, output: Output, *, is_yes: bool) -> None:
    """Asks whether to delete `what`, unless `is_yes`. UsageError if nobody can be asked."""
    if is_yes:
        return
    if output.is_json or not sys.stdin.isatty():
        raise click.UsageError(f"deleting {what} needs --yes here: nobody can be asked")
    click.confirm(f"Delete {what}?", abort=True)


def split_revision(name: str, revision: str | None = None) -> tuple[str, str]:
    """(`namespace/name`, revision) from `namespace/name[@revision]` and an option."""
    name, given = named_revision(name)
    if given is not None and revision is not None and revision != given:
        raise click.UsageError(f"two revisions: {given} and {revision}")
    return name, given or revision or "main"


def utc_time(text: str | None) -> str:
    """A time of an answer, ISO 8601, as `2026-03-14 15:09 UTC`."""
    try:
        at = datetime.fromisoformat(text or "").astimezone(UTC)
    except (ValueError, OverflowError):
        return text or ""
    return f"{at:%Y-%m-%d %H:%M} UTC"


def table(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Rows as lines of aligned columns. right: the columns to align to the right."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*shown, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    ]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value

"""`deltahub user quota`."""

import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import click

from deltahub.registry.commands.options import data_dir_option, json_option
from deltahub.registry.commands.users.opened import opened, show
from deltahub.registry.quotas import limits
from deltahub.registry.quotas.usage import Usage
from deltahub.registry.sizes import human_size

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([KMGTP])(I?))?B?", re.IGNORECASE)
_SIZE_FORMS = "write 500GB, 1.5TB or 2GiB; without a unit it is bytes"


def _bytes(ctx: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Bytes of a size such as 500GB: K, M, G, T and P are powers of 1000, with an i of 1024."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is no size: {_SIZE_FORMS}")
    unit = (1024 if match[3] else 1000) ** " KMGTP".index((match[2] or " ").upper())
    size = int(Fraction(match[1]) * unit)
    if size > limits.MOST:
        raise click.BadParameter(f"{text!r} is too large: at most {limits.MOST} bytes")
    return size


def _of(used: str, limit: str | None) -> str:
    return f"{used}, no limit" if limit is None else f"{used} of {limit}"


def _quota_lines(namespace: str, used: Usage, may: limits.Limits) -> Iterator[str]:
    yield namespace
    most = None if may.repositories is None else str(may.repositories)
    yield f"  repositories: {_of(str(used.repositories), most)}"
    for name, is_used, limit in (
        ("stored", used.stored_bytes, may.stored_bytes),
        ("files", used.logical_bytes, may.logical_bytes),
    ):
        yield f"  {name}: {_of(human_size(is_used), None if limit is None else human_size(limit))}"


@click.command("quota")
@click.argument("namespace")
@click.option("--repositories", type=click.IntRange(min=0), help="Most repositories.")
@click.option(
    "--stored", metavar="SIZE", callback=_bytes,
    help="Most stored bytes: 500GB, 1.5TB, 2GiB.",
)  # fmt: skip
@click.option("--files", metavar="SIZE", callback=_bytes, help="Most bytes of files, as pushed.")
@click.option("--clear", is_flag=True, help="Let the hub's defaults count again.")
@data_dir_option
@json_option
def quota(
    namespace: str,
    repositories: int | None,
    stored: int | None,
    files: int | None,
    clear: bool,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Show what the NAMESPACE of a user or organization uses and may use, or set its limits.

    With an option it sets all three: what is not named has no limit.
    """
    is_set = any(each is not None for each in (repositories, stored, files))
    if clear and is_set:
        raise click.UsageError("--clear takes the limits away: leave the other options out")
    with opened(data_dir, to_read=not (clear or is_set)) as reg:
        if clear or is_set:
            given = None if clear else limits.Limits(repositories, stored, files)
            limits.set_limits(reg, None, namespace, given, by_shell=True)
        used, may = limits.show_limits_to_operator(reg, namespace)
    data = {"namespace": namespace, "used": vars(used), "limits": vars(may)}
    show(as_json, data, "\n".join(_quota_lines(namespace, used, may)))

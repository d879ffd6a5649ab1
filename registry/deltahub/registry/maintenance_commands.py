"""`deltahub gc` and `deltahub fsck`, for whoever may open the data folder."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from sqlalchemy.exc import SQLAlchemyError

from deltahub.registry import fsck as checks
from deltahub.registry.collect import apply_gc
from deltahub.registry.commands import data_dir_option, json_option
from deltahub.registry.errors import RegistryError
from deltahub.registry.gc import plan_gc
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.store.base import StoreError

EXIT_REFUSED = 1
EXIT_ERROR = 2

_CODES = "\n".join(f"  {code}: {meaning}" for code, meaning in checks.CODES.items())


class CannotRun(click.ClickException):
    """The data folder could not be opened or read to its end."""

    exit_code = EXIT_ERROR


@contextmanager
def _opened(data_dir: Path) -> Iterator[Registry]:
    if not data_dir.is_dir():
        raise CannotRun(f"there is no data folder {data_dir}; name it with --data-dir")
    try:
        with Registry.open(Settings(data_dir=data_dir)) as reg:
            yield reg
    except (RegistryError, StoreError, SQLAlchemyError, OSError) as exc:
        raise CannotRun(str(exc)) from exc


@click.command()
@click.option("--apply", "is_applied", is_flag=True, help="Carry the plan out.")
@click.option(
    "--lease", "lease_s", type=click.FloatRange(min=0), metavar="SECONDS",
    help="How long condemned packs wait for their readers; 0 only while the hub is stopped.",
)  # fmt: skip
@click.option(
    "--grace", "grace_s", type=click.FloatRange(min=0), metavar="SECONDS",
    help="How long files and tensors wait for the commit that will name them.",
)  # fmt: skip
@click.option("--delete-unknown", is_flag=True, help="Also delete objects that no row knows.")
@data_dir_option
@json_option
def gc(
    is_applied: bool,
    lease_s: float | None,
    grace_s: float | None,
    delete_unknown: bool,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Plan what is garbage, and with --apply collect it.

    Exit status: 0 planned or done; 1 refused, for the plan has doubts; 2 could not run.
    """
    with _opened(data_dir) as reg:
        plan = plan_gc(reg, lease_s=lease_s, grace_s=grace_s)
        outcome = None
        if is_applied and not plan.doubts:
            outcome = apply_gc(reg, plan, delete_unknown=delete_unknown)
    if as_json:
        data = {"plan": plan.as_dict(), "outcome": outcome and outcome.as_dict()}
        click.echo(json.dumps(data, indent=2))
    else:
        for line in plan.lines():
            click.echo(line)
        if outcome is not None:
            for line in outcome.lines():
                click.echo(line)
        elif not plan.doubts:
            click.echo("nothing was changed; --apply carries the plan out")
    if plan.doubts:
        if not as_json:
            click.echo("gc touches nothing while in doubt", err=True)
        raise SystemExit(EXIT_REFUSED)


@click.command(epilog=f"\b\nCodes of findings:\n{_CODES}")
@click.option("--read-data", is_flag=True, help="Also read, decode and hash every byte.")
@data_dir_option
@json_option
def fsck(read_data: bool, data_dir: Path, as_json: bool) -> None:
    """Check what the hub says it has against what is there. Fixes nothing.

    Exit status: 0 clean; 1 something was found; 2 could not run.
    """
    found = []
    with _opened(data_dir) as reg:
        for finding in checks.fsck(reg, read_data=read_data, progress=_show_stage):
            found.append(finding)
            if not as_json:
                click.echo(f"{finding.code}: {finding.text}")
    if as_json:
        click.echo(json.dumps({"findings": [asdict(finding) for finding in found]}, indent=2))
    else:
        click.echo(f"{len(found)} findings" if found else "clean")
    raise SystemExit(checks.EXIT_FINDINGS if found else checks.EXIT_CLEAN)


def _show_stage(stage: str) -> None:
    click.echo(f"checking {stage}", err=True)

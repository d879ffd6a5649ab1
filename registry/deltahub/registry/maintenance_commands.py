"""`deltahub gc` and `deltahub fsck`, for whoever may open the data folder."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from sqlalchemy.exc import SQLAlchemyError

from deltahub.registry import fsck as checks
from deltahub.registry.collect import apply_gc
from deltahub.registry.commands import Refused, data_dir_option, json_option
from deltahub.registry.data_folder import (
    EXIT_BUSY,
    GC,
    RECOMPRESS,
    RECOMPRESS_LOCK,
    SERVE_LOCK,
    WORKER_LOCK,
    DataFolderBusy,
    DataFolderLock,
    NoHub,
    require_hub,
)
from deltahub.registry.errors import RegistryError
from deltahub.registry.gc import plan_gc
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.store.base import StoreError

EXIT_REFUSED = 1
EXIT_ERROR = 2

_CODES = "\n".join(f"  {code}: {meaning}" for code, meaning in checks.CODES.items())


class CannotRun(Refused):
    """The data folder could not be opened or read to its end."""

    exit_code = EXIT_ERROR


class InUse(click.ClickException):
    """What may only be done while the hub is stopped."""

    exit_code = EXIT_BUSY
    code = DataFolderBusy.code


@contextmanager
def opened_folder(settings: Settings) -> Iterator[Registry]:
    """The hub in the folder, which must be there; what cannot be read becomes status 2."""
    try:
        require_hub(settings)
        with Registry.open(settings) as reg:
            yield reg
    except (NoHub, RegistryError, StoreError, SQLAlchemyError, OSError) as exc:
        raise CannotRun(exc) from exc


@contextmanager
def _readers_kept_out(reg: Registry, lease_s: float | None) -> Iterator[None]:
    """Neither hub nor worker runs while packs go after less than the lease that they count on."""
    needed_s = reg.settings.read_lease_s
    if lease_s is None or lease_s >= needed_s:
        yield
        return
    with ExitStack() as stack:
        try:
            for name in (SERVE_LOCK, WORKER_LOCK, RECOMPRESS_LOCK):
                stack.enter_context(DataFolderLock(reg.data_dir, name, GC))
        except DataFolderBusy as exc:
            if exc.command == GC:
                raise InUse(
                    f"another `{GC}` has the data folder {exc.folder} to itself ({exc.holder}): "
                    "wait for its end"
                ) from exc
            if exc.command == RECOMPRESS:
                raise InUse(
                    f"`{RECOMPRESS}` is at work in the data folder {exc.folder} ({exc.holder}): "
                    f"wait for its end before collecting with --lease {lease_s:g}, or leave "
                    "--lease out"
                ) from exc
            raise InUse(
                f"a hub runs on the data folder {exc.folder} ({exc.holder}), and its "
                f"readers may need a condemned pack for {needed_s} s (DELTAHUB_READ_LEASE_S): "
                f"stop it before collecting with --lease {lease_s:g}, or leave --lease out"
            ) from exc
        yield


@click.command()
@click.option("--apply", "is_applied", is_flag=True, help="Carry the plan out.")
@click.option(
    "--lease", "lease_s", type=click.FloatRange(min=0), metavar="SECONDS",
    help="How long condemned packs wait for their readers (DELTAHUB_READ_LEASE_S); --apply with "
    "less only while the hub is stopped.",
)  # fmt: skip
@click.option(
    "--grace", "grace_s", type=click.FloatRange(min=0), metavar="SECONDS",
    help="How long files and tensors wait for the commit that will name them "
    "(DELTAHUB_HOLD_TTL_S).",
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

    Exit status: 0 planned or done; 1 refused, for the plan has doubts; 2 could not run; 3 a hub,
    a worker or another gc has the data folder, and the lease is too short for --apply beside it.
    """
    # A plan deletes nothing, so it keeps nobody out.
    with (
        opened_folder(Settings(data_dir=data_dir)) as reg,
        _readers_kept_out(reg, lease_s if is_applied else None),
    ):
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
            click.echo("deltahub: gc touches nothing while in doubt", err=True)
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
    with opened_folder(Settings(data_dir=data_dir)) as reg:
        for finding in checks.fsck(reg, read_data=read_data, progress=_show_stage):
            found.append(finding)
            if not as_json:
                click.echo(f"{finding.code}: {finding.text}")
    if as_json:
        click.echo(json.dumps({"findings": [asdict(finding) for finding in found]}, indent=2))
    else:
        noun = "finding" if len(found) == 1 else "findings"
        click.echo(f"{len(found)} {noun}" if found else "clean")
    raise SystemExit(checks.EXIT_FINDINGS if found else checks.EXIT_CLEAN)


def _show_stage(stage: str) -> None:
    click.echo(f"checking {stage}", err=True)

"""`deltahub gc` and `deltahub fsck`, for whoever may open the data folder."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from deltahub.registry.commands.errors import EXIT_REFUSED
from deltahub.registry.commands.folder import opened_folder, readers_kept_out
from deltahub.registry.commands.options import data_dir_option, json_option
from deltahub.registry.maintenance.fsck import run as checks
from deltahub.registry.maintenance.gc.apply import apply_gc
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.settings import Settings

_CODES = "\n".join(f"  {code}: {meaning}" for code, meaning in checks.CODES.items())


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
        readers_kept_out(reg, lease_s if is_applied else None),
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

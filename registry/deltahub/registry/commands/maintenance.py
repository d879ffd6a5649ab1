"""`deltahub gc` and `deltahub fsck`, for operators."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from deltahub.registry.commands.errors import EXIT_REFUSED
from deltahub.registry.commands.folder import folder_to_read, opened_folder, readers_kept_out
from deltahub.registry.commands.options import SECONDS, data_dir_option, json_option
from deltahub.registry.maintenance import clock
from deltahub.registry.maintenance.fsck import run
from deltahub.registry.maintenance.fsck.findings import CODES
from deltahub.registry.maintenance.gc.apply import Outcome, apply_gc
from deltahub.registry.maintenance.gc.plan import Plan, plan_gc
from deltahub.registry.maintenance.gc.settle import suspect_everything
from deltahub.registry.maintenance.gc.summary import WHY, lines_of
from deltahub.registry.maintenance.repair.judge import Repaired
from deltahub.registry.maintenance.repair.run import repair
from deltahub.registry.retention.rules import tidy
from deltahub.registry.settings import Settings
from deltahub.registry.sizes import human_size

_MOST_RULES = 10  # repositories with due rules that a plan names
_CODES = "\n".join(f"  {code}: {meaning}" for code, meaning in CODES.items())


@click.command()
@click.option("--apply", "is_applied", is_flag=True, help="Carry the plan out.")
@click.option(
    "--lease", "lease_s", type=SECONDS, metavar="SECONDS",
    help="How long condemned packs wait for their readers (DELTAHUB_READ_LEASE_S); --apply with "
    "less only while the hub is stopped.",
)  # fmt: skip
@click.option(
    "--grace", "grace_s", type=SECONDS, metavar="SECONDS",
    help="How long files and tensors wait for the commit that will name them "
    "(DELTAHUB_HOLD_TTL_S).",
)  # fmt: skip
@click.option(
    "--revision-grace", "revision_grace_s", type=SECONDS, metavar="SECONDS",
    help="How long dropped revisions can be taken back (DELTAHUB_REVISION_GRACE_S).",
)  # fmt: skip
@click.option(
    "--full",
    "is_full",
    is_flag=True,
    help="Look at all rows and objects, not only at what changed since the last collection.",
)
@click.option(
    "--delete-unknown", is_flag=True, help="Also delete objects that no row knows; with --full."
)
@click.option(
    "--now", "is_impatient", is_flag=True,
    help="With the hub stopped: wait for nothing, and leave no dead bytes in any pack. What was "
    "dropped, deleted or not committed yet goes at once. Implies --full.",
)  # fmt: skip
@click.option(
    "--clock-was-ahead", is_flag=True,
    help="Trust this machine's clock, and set dates in the future to now. First make sure that the "
    "clock is right: with a wrong one, running pushes and downloads may break.",
)  # fmt: skip
@data_dir_option
@json_option
def gc(
    is_applied: bool,
    lease_s: float | None,
    grace_s: float | None,
    revision_grace_s: float | None,
    is_full: bool,
    delete_unknown: bool,
    is_impatient: bool,
    clock_was_ahead: bool,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Plan what is garbage, and with --apply collect it.

    Exit status: 0 planned or done; 1 refused, for the plan has doubts; 2 could not run; 3 a hub,
    a worker or another gc has the data folder, and the lease is too short for --apply beside it.
    """
    if is_impatient:
        if (lease_s, grace_s, revision_grace_s) != (None, None, None):
            raise click.UsageError("--now waits for nothing: leave the times out")
        lease_s = grace_s = revision_grace_s = 0.0
    is_full = is_full or delete_unknown or is_impatient
    # A plan without --apply changes nothing, so it needs neither locks nor a writable folder.
    open_folder = opened_folder if is_applied else folder_to_read
    with (
        open_folder(Settings(data_dir=data_dir)) as reg,
        readers_kept_out(reg, lease_s if is_applied else None),
    ):
        make_plan = partial(
            plan_gc, reg, lease_s=lease_s, grace_s=grace_s, revision_grace_s=revision_grace_s,
            clock_was_ahead=clock_was_ahead, is_full=is_full, is_impatient=is_impatient,
        )  # fmt: skip
        if is_full and is_applied:
            suspect_everything(reg)
        plan = make_plan()
        n_ahead = clock.count_ahead(reg) if clock_was_ahead else 0
        outcome = None
        if is_applied and not plan.doubts:
            if n_ahead:
                n_ahead = clock.set_to_now(reg)
            if tidy(reg) or n_ahead:
                plan = make_plan()
            outcome = apply_gc(reg, plan, delete_unknown=delete_unknown)
    if as_json:
        data: dict[str, Any] = {"plan": plan.as_dict(), "outcome": outcome and outcome.as_dict()}
        if clock_was_ahead:
            data["dates_ahead"] = n_ahead
        click.echo(json.dumps(data, indent=2))
    else:
        if clock_was_ahead:
            verb = "to set" if outcome is None else "set"
            click.echo(f"dates in the future {verb} to now: {n_ahead}")
        lines = [
            *plan_lines(plan, delete_unknown=delete_unknown),
            *(_outcome_lines(outcome) if outcome is not None else ()),
        ]
        if outcome is None and not plan.doubts:
            lines.append("nothing was changed; --apply carries the plan out")
        click.echo("\n".join(lines))
    if plan.doubts:
        if not as_json:
            click.echo("deltahub: gc touches nothing while in doubt", err=True)
        raise SystemExit(EXIT_REFUSED)


@click.command(epilog=f"\b\nCodes of findings:\n{_CODES}")
@click.option("--read-data", is_flag=True, help="Also read, decode and hash every byte.")
@click.option(
    "--repair", "is_repaired", is_flag=True,
    help="First mark what is lost, so that the next push of the same bytes brings it back and gc "
    "goes on; unmark what can be read again. Deletes nothing.",
)  # fmt: skip
@click.option(
    "--accept-loss",
    is_flag=True,
    help="With --repair: also if more than half of the packs are gone.",
)
@click.option(
    "--resume",
    "resumed",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep the place that the run has reached in this file, and go on from there if the run "
    "before did not end. The file goes at the end.",
)
@data_dir_option
@json_option
def fsck(
    read_data: bool,
    is_repaired: bool,
    accept_loss: bool,
    resumed: Path | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Check what the hub says it has against what is there. Without --repair, changes nothing.

    Exit status: 0 clean; 1 something was found; 2 could not run.
    """
    if accept_loss and not is_repaired:
        raise click.UsageError("--accept-loss says what --repair may do; add --repair")
    found = []
    repaired = None
    settings = Settings(data_dir=data_dir)
    folder = (
        opened_folder(settings) if is_repaired else folder_to_read(settings, schema_checked=False)
    )
    with folder as reg:
        if is_repaired:
            repaired = repair(
                reg, read_data=read_data, accept_loss=accept_loss, progress=_show_stage
            )
            if not as_json:
                click.echo("\n".join(_repair_lines(repaired)))
        checked = run.fsck(reg, read_data=read_data, progress=_show_stage, resumed=resumed)
        try:
            for finding in checked:
                found.append(finding)
                if not as_json:
                    click.echo(finding.line)
        except KeyboardInterrupt:
            if not as_json:
                file = "FILE" if resumed is None else resumed
                when = "next time, to go on after an end like this" if resumed is None else "again"
                click.echo(f"run it with --resume {file} {when}", err=True)
            raise
    if as_json:
        data: dict[str, object] = {"findings": [asdict(finding) for finding in found]}
        if repaired is not None:
            data["repaired"] = asdict(repaired)
        click.echo(json.dumps(data, indent=2))
    else:
        noun = "finding" if len(found) == 1 else "findings"
        click.echo(f"{len(found)} {noun}" if found else "clean")
    raise SystemExit(run.EXIT_FINDINGS if found else run.EXIT_CLEAN)


def _repair_lines(repaired: Repaired) -> Iterator[str]:
    counts = (
        ("packs marked as damaged", repaired.damaged_packs),
        ("packs that are whole again", repaired.restored_packs),
        ("packs put back from their second copies", repaired.packs_from_copies),
        ("tensors marked as lost", repaired.lost_tensors),
        ("tensors that can be read again", repaired.restored_tensors),
        ("tensors moved out of damaged packs", repaired.salvaged_tensors),
        ("uploads that are whole again", repaired.restored_uploads),
    )
    lines = [f"{text}: {count}" for text, count in counts if count]
    yield from lines or ["nothing to mark"]
    yield from repaired.notes


def plan_lines(plan: Plan, *, delete_unknown: bool = False) -> Iterator[str]:
    for due in plan.rules[:_MOST_RULES]:
        yield (
            f"dropped by the rule of {due.of} first, {due.repository}: {due.revisions} revisions"
        )
    if len(plan.rules) > _MOST_RULES:
        yield f"dropped by rules in {len(plan.rules) - _MOST_RULES} more repositories"
    for line in lines_of(plan, delete_unknown=delete_unknown):
        yield f"{line.text}: {line.n}{_bytes(line.n_bytes)}"
    for why, size in plan.reasons.items():
        yield f"because {WHY[why]}: {human_size(size)}"
    for item in plan.waiting:
        until = datetime.fromisoformat(item.until)
        # Revisions and files have no bytes: tensors and uploads, in lines of their own, have.
        shown = _bytes(item.size_bytes or None)
        yield f"waiting, {item.what}: {item.count}{shown}, until {until:%F %T} UTC"
    n_unknown = sum(item.size_bytes for item in plan.unknown) if delete_unknown else 0
    yield (
        f"frees {human_size(plan.freed_bytes + n_unknown)} now, "
        f"{human_size(plan.later_bytes)} after the "
        f"lease; {human_size(plan.waiting_bytes)} wait"
    )
    yield from (f"doubt: {doubt}" for doubt in plan.doubts)


def _bytes(size: int | None) -> str:
    return "" if size is None else f" ({human_size(size)})"


def _outcome_lines(outcome: Outcome) -> Iterator[str]:
    counts = (
        ("dropped revisions forgotten", outcome.revisions),
        ("uploads deleted", outcome.uploads),
        ("xorbs deleted", outcome.xorbs),
        ("files forgotten", outcome.files),
        ("tensors forgotten", outcome.tensors),
        ("packs condemned", outcome.condemned + outcome.repacked),
        ("packs deleted", outcome.deleted),
        ("puts of dead processes ended", outcome.unfinished),
        ("ends of uploads by dead processes deleted", outcome.tails),
        ("objects deleted that a backup had needed", outcome.deferred),
        ("second copies deleted", outcome.copies),
        ("unknown objects deleted", outcome.unknown),
    )
    yield from (f"{text}: {count}" for text, count in counts if count)
    yield from outcome.notes
    yield f"freed {human_size(outcome.freed_bytes)}"


def _show_stage(stage: str) -> None:
    click.echo(f"checking {stage}", err=True)

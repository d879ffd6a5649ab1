"""`deltahub recompress`, for operators."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import click

from deltahub.registry.commands.errors import EXIT_REFUSED, InUse, Refused
from deltahub.registry.commands.folder import folder_to_read, opened_folder
from deltahub.registry.commands.options import data_dir_option, json_option
from deltahub.registry.data_folder import (
    RECOMPRESS,
    RECOMPRESS_LOCK,
    DataFolderBusy,
)
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import InvalidRequest, NotFound
from deltahub.registry.leases.locks import alone
from deltahub.registry.reencode.recompress import Outcome, Plan, apply_recompress, plan_recompress
from deltahub.registry.reencode.unreadable import Unreadable
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.sizes import human_size

# Unreadable tensors listed for one file. --json lists all.
MAX_LISTED_TENSORS = 4
# Seconds between changes of the progress line on a terminal.
UPDATE_INTERVAL_S = 0.2


class _Malformed(Refused):
    exit_code = 2


class _Absent(Refused):
    exit_code = 3


@click.command()
@click.option("--apply", "is_applied", is_flag=True, help="Carry the plan out.")
@click.option(
    "--repository", metavar="NAMESPACE/NAME", help="Only what this repository's revisions hold."
)
@click.option(
    "--effort", type=click.Choice(["fast", "default", "max"]),
    help="Work to spend on coding a frame smaller (DELTAHUB_CODEC_EFFORT).",
)  # fmt: skip
@data_dir_option
@json_option
def recompress(
    is_applied: bool,
    repository: str | None,
    effort: Literal["fast", "default", "max"] | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Show what older releases, lower efforts or clients wrote; with --apply code it smaller.

    May run beside a hub, be killed at any moment and run again: what is done is not done again.

    Exit status: 0 planned or done; 1 some tensors cannot be read, the rest is done; 2 could not
    run; 3 no such repository, or another recompress, or a gc that needs it to itself, has the data
    folder.
    """
    settings = Settings(data_dir=data_dir)
    if effort is not None:
        settings = Settings(data_dir=data_dir, codec_effort=effort)
    open_folder = opened_folder if is_applied else folder_to_read
    with open_folder(settings) as reg, _recompress_lock(reg, is_applied):
        reader = FileReader(reg)
        try:
            plan = plan_recompress(reg, reader, repository)
        except InvalidRequest as exc:
            raise _Malformed(exc) from exc
        except NotFound as exc:
            raise _Absent(exc) from exc
        outcome = None
        if is_applied:
            progress_line = _ProgressLine()
            outcome = apply_recompress(reg, reader, plan, progress_line)
            progress_line.end()
    unreadable = (*plan.unreadable, *(outcome.failed if outcome is not None else ()))
    if as_json:
        data = {"plan": plan.as_dict(), "outcome": outcome and outcome.as_dict()}
        click.echo(json.dumps(data, indent=2))
    else:
        lines = [*_plan_lines(plan), *(_outcome_lines(outcome) if outcome is not None else ())]
        lines += [*_unreadable_lines(unreadable), _last_line(plan, outcome)]
        click.echo("\n".join(lines))
    if unreadable:
        if not as_json:
            click.echo("deltahub: some tensors cannot be read; nothing of them changed", err=True)
        raise SystemExit(EXIT_REFUSED)


@contextmanager
def _recompress_lock(reg: Registry, is_applied: bool) -> Iterator[None]:
    """Hold the recompress lock while applying: one recompress at a time, none beside a gc that has
    locked readers out. InUse.
    """
    if not is_applied:
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(alone(reg, RECOMPRESS_LOCK, RECOMPRESS))
        except DataFolderBusy as exc:
            raise InUse(f"{exc.place} is taken ({exc.holder}): wait for its end") from exc
        yield


def _plan_lines(plan: Plan) -> Iterator[str]:
    now = plan.up_to_date
    yield f"up to date: {now.frames} frames ({human_size(now.stored_bytes)})"
    for group in plan.groups:
        effort = f", effort {group.effort}" if group.effort else ""
        yield (
            f"to be looked at: {group.codec} version {group.version}{effort}: "
            f"{group.frames} frames ({human_size(group.stored_bytes)}, "
            f"of {human_size(group.decoded_bytes)})"
        )


def _outcome_lines(outcome: Outcome) -> Iterator[str]:
    yield (
        f"{outcome.replanned} tensors became differences from a base, {outcome.replaced} were "
        f"coded smaller, {outcome.not_smaller} stay as they are; "
        f"{human_size(outcome.saved_bytes)} saved"
    )
    if outcome.changed:
        yield f"{outcome.changed} tensors were changed or deleted by others meanwhile"
    yield from (f"note: {note}" for note in outcome.notes)


def _unreadable_lines(unreadable: Iterable[Unreadable]) -> Iterator[str]:
    for each in unreadable:
        where = f"{each.repository}, {each.path}" if each.repository else "in no revision"
        names = ", ".join(each.tensors[:MAX_LISTED_TENSORS])
        more = len(each.tensors) - MAX_LISTED_TENSORS
        rest = f" and {more} more" if more > 0 else ""
        n_tensors = len(each.tensors)
        what = f"{n_tensors} tensor{'s' if n_tensors > 1 else ''}"
        yield f"cannot be read: {where}: {what} ({each.reason}): {names}{rest}"


def _last_line(plan: Plan, outcome: Outcome | None) -> str:
    if plan.unreadable:
        return (
            "what cannot be read must be pushed again: delete these repositories, collect with "
            "`deltahub gc --apply`, and push them from where they came"
        )
    if not plan.tensors:
        return "there is nothing to do"
    if outcome is None:
        return "nothing was changed; --apply carries the plan out"
    if outcome.saved_bytes == 0:
        return "nothing could be made smaller"
    return "old frames are garbage now: `deltahub gc --apply` gives their bytes back"


class _ProgressLine:
    """Shows progress on stderr: one changing line on a terminal, else a line for each stage."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()
        self._shown_at = 0.0
        self._stage = ""
        self._last = (0, 0)
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        self._last = (done, total)
        is_due = now - self._shown_at >= UPDATE_INTERVAL_S if self._is_terminal else False
        if stage != self._stage or is_due:
            self._stage, self._shown_at = stage, now
            self._show(stage)

    def end(self) -> None:
        if self._is_terminal and self._stage:
            click.echo("\r\033[K", nl=False, err=True)
        elif self._stage:
            self._show("done")

    def _show(self, stage: str) -> None:
        done, total = self._last
        speed = human_size(int(done / max(time.monotonic() - self._began_at, 1e-3)))
        text = f"{human_size(done)} of {human_size(total)}, {speed}/s: {stage}"
        line = f"\r\033[K{text[:120]}" if self._is_terminal else text
        click.echo(line, nl=not self._is_terminal, err=True)

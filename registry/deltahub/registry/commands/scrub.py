"""`deltahub scrub`, for operators."""

import json
import logging
import re
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from deltahub.registry.commands.folder import folder_to_read, opened_folder
from deltahub.registry.commands.options import data_dir_option, json_option
from deltahub.registry.db.models import utc_now
from deltahub.registry.db.tables.scrub import FoundDamage
from deltahub.registry.landings.damage import mark_damaged
from deltahub.registry.losses.findings import open_findings
from deltahub.registry.maintenance.scrub import due
from deltahub.registry.maintenance.scrub.pace import Pace
from deltahub.registry.maintenance.scrub.run import Scrub
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.sizes import human_size

EXIT_CLEAN = 0
EXIT_FINDINGS = 1
_KEPT_OFF = logging.NullHandler()
_UNITS = {
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}


class _Age(click.ParamType[timedelta]):
    name = "age"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)(min|h|d|w)", str(value))
        if found is None:
            self.fail(f"{value!r} is no age: write 45min, 12h, 30d or 4w", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


@click.command()
@click.option("--all", "is_all", is_flag=True, help="Prove everything, whenever it was proved.")
@click.option(
    "--share", type=click.FloatRange(0, 1, min_open=True),
    help="Prove this share of the stored bytes, such as 0.1.",
)  # fmt: skip
@click.option(
    "--older-than", type=_Age(), metavar="AGE",
    help="Prove what was last proved so long ago: 45min, 12h, 30d, 4w. By default "
    "DELTAHUB_SCRUB_DAYS.",
)  # fmt: skip
@click.option(
    "--limit-bytes", type=click.IntRange(min=1), metavar="N", help="Stop after so many bytes."
)
@click.option(
    "--repair/--no-repair", "is_repairing", default=True,
    help="Put back or mark what is damaged (the default), or only report it.",
)  # fmt: skip
@click.option("--decode", "is_decoding", is_flag=True, help="Also decode the frames of the packs.")
@click.option(
    "--max-mb-per-s", type=click.FloatRange(min=0), default=0.0, metavar="N",
    help="Read at most so many MB in a second; 0: no limit.",
)  # fmt: skip
@click.option(
    "--findings", "is_list", is_flag=True, help="Only list the open findings; read no object."
)
@data_dir_option
@json_option
def scrub(data_dir: Path, as_json: bool, is_list: bool, max_mb_per_s: float, **choice: Any) -> None:
    """Read stored bytes, prove them by their hashes, and repair what is damaged.

    It begins with what was proved longest ago. It may run beside a hub, be killed at any moment and
    run again: what was proved is not read again. SIGTERM and Ctrl-C end it between two reads.

    Exit status: 0 clean; 1 damage was found, or is open from before; 2 could not run.
    """
    settings = Settings(data_dir=data_dir)
    work: Scrub | None = None
    left = (0, 0)
    open_folder = folder_to_read if is_list else opened_folder
    with open_folder(settings) as reg:
        if not is_list:
            work, left = _scrub(reg, Pace(max_mb_per_s), as_json=as_json, **choice)
        with reg.db.read() as session:
            opened = open_findings(session)
    outcome = None if work is None else work.done
    if as_json:
        data: dict[str, Any] = {"findings": [_as_dict(each) for each in opened]}
        if outcome is not None:
            data["outcome"] = {**asdict(outcome), "left": left[0], "left_bytes": left[1]}
        click.echo(json.dumps(data, indent=2))
    else:
        lines = () if work is None else _outcome_lines(work, opened, left)
        click.echo("\n".join([*lines, *_finding_lines(opened)]))
    n_found = 0 if outcome is None else outcome.n_found
    raise SystemExit(EXIT_FINDINGS if opened or n_found else EXIT_CLEAN)


def _scrub(
    reg: Registry,
    pace: Pace,
    *,
    as_json: bool,
    is_all: bool,
    share: float | None,
    older_than: timedelta | None,
    limit_bytes: int | None,
    is_repairing: bool,
    is_decoding: bool,
) -> tuple[Scrub, tuple[int, int]]:
    """(the scrub that has run, objects and bytes that are left of those that were due)."""
    before = _before(reg, is_all=is_all or share is not None, older_than=older_than)
    if share is not None:
        with reg.db.read() as session:
            n_bytes = max(1, round(share * due.count(session)[1]))
        limit_bytes = min(n_bytes, limit_bytes or n_bytes)
    work = Scrub(reg, pace, is_repairing=is_repairing, is_decoding=is_decoding)
    # The result says what these modules log. Without a handler Python prints it as well.
    for logged in (Scrub, mark_damaged):
        logging.getLogger(logged.__module__).addHandler(_KEPT_OFF)
    with _stopped_by_signals(pace):
        click.echo("proving stored bytes", err=True)
        work.run(before, limit_bytes=limit_bytes)
        if is_repairing and not pace.is_stopped:
            work.make_copies()
        work.finish()
    with reg.db.read() as session:
        return work, due.count(session, before)


def _before(reg: Registry, *, is_all: bool, older_than: timedelta | None) -> datetime:
    """Objects that were last checked before this time are due."""
    now = utc_now()
    if older_than is not None:
        return now - older_than
    return now if is_all else now - timedelta(days=reg.settings.scrub_days)


@contextmanager
def _stopped_by_signals(pace: Pace) -> Iterator[None]:
    """A context in which SIGTERM and SIGINT stop the pace."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: pace.stop()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _as_dict(found: FoundDamage) -> dict[str, Any]:
    return {
        "code": found.code,
        "kind": found.kind,
        "target": found.object_id,
        "text": found.text,
        "files": found.affected["names"],
        "n_files": found.affected["n_names"],
        "found_at": found.found_at.isoformat(),
        "last_seen_at": found.last_seen_at.isoformat(),
    }


def _outcome_lines(
    work: Scrub, opened: Collection[FoundDamage], left: tuple[int, int]
) -> Iterator[str]:
    """What a scrub did. Damage that is still open is left out: the open findings tell it."""
    outcome = work.done
    known = {(row.kind, row.object_id) for row in opened}
    for kind, damage in work.found:
        if (kind, damage.target) not in known:
            yield f"{damage.code}: {damage.text}"
    if outcome.n_found > len(outcome.found):
        yield f"and {outcome.n_found - len(outcome.found)} more damaged objects"
    yield f"objects that are right: {outcome.proved} ({human_size(outcome.proved_bytes)})"
    restored = outcome.restored
    counts = (
        ("packs put back from their second copies", restored.packs_from_copies),
        ("tensors stored again from another place", restored.tensors_from_elsewhere),
        ("files read from an upload again", restored.files_from_uploads),
        ("second copies written", restored.copies),
        ("packs marked as damaged", restored.damaged_packs),
        ("packs that are whole again", restored.restored_packs),
        ("tensors marked as lost", restored.lost_tensors),
        ("tensors that can be read again", restored.restored_tensors),
        ("tensors moved out of damaged packs", restored.salvaged_tensors),
        ("xorbs that clients send again", restored.dropped_xorbs),
    )
    yield from (f"{text}: {count}" for text, count in counts if count)
    yield from restored.notes
    if left[0]:
        why = "stopped" if outcome.is_stopped else "not all was read"
        yield f"{why}; due are {left[0]} objects more ({human_size(left[1])})"


def _finding_lines(opened: list[FoundDamage]) -> Iterator[str]:
    if not opened:
        yield "no open findings"
        return
    yield f"open findings: {len(opened)}"
    for found in opened:
        yield f"{found.code}: {found.text} (since {found.found_at:%F %T} UTC)"
        yield from (f"  needed by {name}" for name in found.affected["names"])
        n_more = found.affected["n_names"] - len(found.affected["names"])
        if n_more > 0:
            yield f"  and by {n_more} more files"

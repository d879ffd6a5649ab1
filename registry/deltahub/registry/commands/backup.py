"""`deltahub backup` and `deltahub restore`, for operators."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from sqlalchemy.exc import SQLAlchemyError

from deltahub.registry.commands.errors import EXIT_REFUSED, CannotRun, InUse
from deltahub.registry.commands.folder import opened_folder
from deltahub.registry.commands.options import data_dir_option, json_option
from deltahub.registry.commands.progress import StageLine
from deltahub.registry.data_folder import DataFolderBusy
from deltahub.registry.errors import RegistryError
from deltahub.registry.maintenance.backup.copy import CopyDamaged
from deltahub.registry.maintenance.backup.database import ToolMissing
from deltahub.registry.maintenance.backup.place import Place, PlaceRefused, opened_to_read
from deltahub.registry.maintenance.backup.run import Outcome
from deltahub.registry.maintenance.backup.run import backup as make_backup
from deltahub.registry.maintenance.backup.snapshot import (
    Finding,
    Snapshot,
    SnapshotDamaged,
    SnapshotNotFound,
    finished,
    load,
)
from deltahub.registry.maintenance.backup.verify import verify as verify_snapshot
from deltahub.registry.maintenance.deletions import BACKUP, HoldLost
from deltahub.registry.maintenance.restore.run import Restored
from deltahub.registry.maintenance.restore.run import restore as restore_snapshot
from deltahub.registry.maintenance.restore.target import RestoreRefused
from deltahub.registry.settings import Settings
from deltahub.registry.sizes import human_size
from deltahub.registry.storage.base import StoreError, StoreFull, StoreUnavailable
from deltahub.registry.stores.current import OBJECTS

_FAILURES = (
    PlaceRefused, SnapshotDamaged, SnapshotNotFound, CopyDamaged, ToolMissing, HoldLost,
    RestoreRefused, StoreError, RegistryError, SQLAlchemyError, OSError,
)  # fmt: skip


def _from_option(command: Any) -> Any:
    return click.option(
        "--from", "place_name", required=True, metavar="PLACE",
        help="Place of the backups: a folder, or s3://BUCKET/PREFIX.",
    )(command)  # fmt: skip


def _snapshot_option(command: Any) -> Any:
    return click.option(
        "--snapshot", "name", metavar="TIME",
        help="Which backup, as `deltahub backup list` names it; by default the newest.",
    )(command)  # fmt: skip


@click.group(invoke_without_command=True)
@click.option(
    "--to", "place_name", metavar="PLACE",
    help="Where the backup goes: a folder, or s3://BUCKET/PREFIX.",
)  # fmt: skip
@click.option(
    "--trust-copies", is_flag=True,
    help="Do not read again what the newest earlier backup has proved.",
)  # fmt: skip
@click.option(
    "--keep", type=click.IntRange(min=1), metavar="N",
    help="Afterwards remove all but the N newest backups, and what only these need.",
)  # fmt: skip
@data_dir_option
@json_option
@click.pass_context
def backup(
    context: click.Context,
    place_name: str | None,
    trust_copies: bool,
    keep: int | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Copy the hub to another place while it serves, and prove the copy.

    A later backup to the same place copies only what is new. May be killed at any moment and run
    again.

    Exit status: 0 done; 1 done, but something in the hub is damaged or missing; 2 could not run, or
    ended before the backup was whole; 3 another backup is at work.
    """
    if context.invoked_subcommand is not None:
        return
    if place_name is None:
        raise click.UsageError("name the place with --to, or one of the commands list and verify")
    line = StageLine("backing up")
    with opened_folder(Settings(data_dir=data_dir)) as reg, _errors_shown(place_name):
        outcome = make_backup(
            reg, place_name, trust_copies=trust_copies, keep=keep, progress=line.show
        )
    line.end()
    findings = outcome.snapshot.findings
    if as_json:
        click.echo(json.dumps(_outcome_data(outcome), indent=2))
    else:
        click.echo("\n".join([*_outcome_lines(outcome, place_name), *_finding_lines(findings)]))
    if findings:
        raise SystemExit(EXIT_REFUSED)


@backup.command("list")
@_from_option
@json_option
def list_(place_name: str, as_json: bool) -> None:
    """List the finished backups of a place, the oldest first."""
    with _opened(place_name) as (_, place):
        snapshots = [load(place, name) for name in finished(place)]
    if as_json:
        rows = [_snapshot_data(snapshot) for snapshot in snapshots]
        click.echo(json.dumps({"hub": place.hub, "snapshots": rows}, indent=2))
        return
    for each in snapshots:
        found = f", findings: {len(each.findings)}" if each.findings else ""
        click.echo(f"{each.name}  {each.n_objects} objects, {human_size(each.n_bytes)}{found}")
    if not snapshots:
        click.echo("no finished backup")


@backup.command("verify")
@_from_option
@_snapshot_option
@json_option
def verify(place_name: str, name: str | None, as_json: bool) -> None:
    """Read all of a backup and prove it, without a hub.

    Exit status: 0 whole; 1 something is damaged or missing; 2 could not run.
    """
    line = StageLine("proving")
    with _opened(place_name) as (_, place):
        snapshot = load(place, name)
        findings = [*verify_snapshot(place, snapshot, line.show)]
    line.end()
    findings += snapshot.findings
    if as_json:
        data = {"snapshot": snapshot.name, "findings": [asdict(each) for each in findings]}
        click.echo(json.dumps(data, indent=2))
    else:
        lines = [*_finding_lines(findings)]
        size = f"{snapshot.n_objects} objects, {human_size(snapshot.n_bytes)}"
        lines.append(
            f"{snapshot.name}: {size}, {f'{len(findings)} findings' if findings else 'whole'}"
        )
        click.echo("\n".join(lines))
    if findings:
        raise SystemExit(EXIT_REFUSED)


@click.command()
@_from_option
@_snapshot_option
@click.option(
    "--data-dir", required=True, type=click.Path(file_okay=False, path_type=Path),
    help="The new hub's data folder, which is empty or not there.",
)  # fmt: skip
@click.option(
    "--store-url", metavar="URL",
    help="Where the objects go, s3://BUCKET/PREFIX; by default the bucket of DELTAHUB_STORE_URL,"
    " and without that variable the folder `objects` in the data folder.",
)  # fmt: skip
@json_option
def restore(
    place_name: str, name: str | None, data_dir: Path, store_url: str | None, as_json: bool
) -> None:
    """Make a hub of a backup, in an empty folder. Every byte is proved on its way.

    If it is cut short, run it again: it goes on from there. No hub starts before it is done.

    Exit status: 0 done; 1 done, but the backup lacks something that was damaged in the hub already;
    2 could not run, or ended before the hub was whole; 3 another restore is at work in the folder.
    """
    given = {} if store_url is None else {"store_url": store_url}
    line = StageLine("restoring")
    with _opened(place_name, data_dir=data_dir, **given) as (settings, place):
        snapshot = load(place, name)
        click.echo(f"restoring {snapshot.name}; {_target_text(settings, store_url)}", err=True)
        restored = restore_snapshot(place, snapshot, settings, line.show)
    line.end()
    if as_json:
        click.echo(json.dumps(_restored_data(restored), indent=2))
    else:
        click.echo("\n".join(_restored_lines(restored, data_dir)))
    if restored.missing:
        raise SystemExit(EXIT_REFUSED)


@contextmanager
def _errors_shown(place_name: str) -> Iterator[None]:
    try:
        yield
    except (StoreFull, StoreUnavailable) as exc:
        # The store does not know what the operator calls it.
        raise CannotRun(
            type(exc)(f"not finished, with the backups in {place_name}: {exc}")
        ) from exc
    except DataFolderBusy as exc:
        what = "another backup is at work" if exc.command == BACKUP else f"{exc.place} is in use"
        raise InUse(f"{what} ({exc.holder}): wait for its end") from exc
    except _FAILURES as exc:
        raise CannotRun(exc) from exc


@contextmanager
def _opened(place_name: str, **given: Any) -> Iterator[tuple[Settings, Place]]:
    settings = Settings(**given)
    with _errors_shown(place_name), opened_to_read(place_name, settings) as place:
        yield settings, place


def _outcome_lines(outcome: Outcome, place_name: str) -> Iterator[str]:
    snapshot, copied = outcome.snapshot, outcome.copied
    if outcome.is_first:
        yield f"the first backup in {place_name}"
    trusted = copied.n_bytes - copied.copied_bytes - copied.proved_bytes
    yield (
        f"{snapshot.name}: {copied.n_objects} objects, {human_size(copied.n_bytes)};"
        f" {copied.n_copied} new ({human_size(copied.copied_bytes)}), written and read back;"
        f" {human_size(copied.proved_bytes)} of earlier backups read and proved"
        + (f"; {human_size(trusted)} trusted" if trusted > 0 else "")
    )
    if outcome.pruned is not None:
        removed = outcome.pruned
        yield (
            f"removed {removed.snapshots} earlier backups and {removed.objects} objects"
            f" ({human_size(removed.freed_bytes)})"
        )
    yield from outcome.notes


def _finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    for each in findings:
        yield f"{each.code}: {each.text}"
        yield from (f"  needed by {file}" for file in each.files)
        if each.n_files > len(each.files):
            yield f"  and by more, {each.n_files} files in all"


def _restored_lines(restored: Restored, data_dir: Path) -> Iterator[str]:
    snapshot = restored.snapshot
    yield (
        f"restored {snapshot.name} to {data_dir}: {restored.n_objects} objects,"
        f" {human_size(restored.n_bytes)}, all proved"
    )
    yield f"what was pushed after {snapshot.taken_at} is not in it: push it again"
    yield (
        "uploads that were not finished begin again, Hugging Face clients send their chunks again,"
        " and links that the hub had signed have ended; tokens are those of the backup"
    )
    if restored.missing:
        yield (
            f"{restored.missing} objects were damaged or missing when the backup was made: run"
            f" `deltahub fsck --repair --read-data --data-dir {data_dir}`, which names the files"
        )
    yield from _finding_lines(snapshot.findings)
    yield "back it up to a new place: the old one stays with the lost hub, which may come back"
    yield f"start it with `deltahub serve --data-dir {data_dir}`"


def _target_text(settings: Settings, given_url: str | None) -> str:
    """Where the objects go. The environment may lead them to a bucket that nobody thinks of."""
    if settings.store_url is None:
        return f"its objects go to the folder {settings.data_dir.resolve() / OBJECTS}"
    source = "--store-url" if given_url is not None else "DELTAHUB_STORE_URL"
    return f"its objects go to {settings.store_url} ({source})"


def _snapshot_data(snapshot: Snapshot) -> dict[str, Any]:
    data = asdict(snapshot)
    del data["database"], data["manifest"]
    return data


def _outcome_data(outcome: Outcome) -> dict[str, Any]:
    copied = asdict(outcome.copied)
    del copied["findings"], copied["seconds"]
    return {
        "snapshot": _snapshot_data(outcome.snapshot),
        **copied,
        "pruned": None if outcome.pruned is None else asdict(outcome.pruned),
        "notes": outcome.notes,
    }


def _restored_data(restored: Restored) -> dict[str, Any]:
    return {**asdict(restored), "snapshot": _snapshot_data(restored.snapshot)}

"""`deltahub store`, for operators: where the objects lie, and a move to another place."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from deltahub.registry.commands.errors import EXIT_REFUSED, CannotRun, InUse, Refused
from deltahub.registry.commands.folder import folder_to_read, opened_folder
from deltahub.registry.commands.options import data_dir_option, json_option
from deltahub.registry.commands.progress import CountLine
from deltahub.registry.data_folder import (
    MOVE_LOCK,
    STORE_COPY,
    DataFolderBusy,
)
from deltahub.registry.leases.locks import alone, check_free
from deltahub.registry.maintenance.move.run import Moved, MoveRefused, give_up, move
from deltahub.registry.maintenance.move.show import ShownPlace, show
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.sizes import human_size
from deltahub.registry.storage.base import StoreError
from deltahub.registry.store_url import S3Location
from deltahub.registry.stores.places import FOLDER

_MOST_LISTED = 20


@click.group()
def store() -> None:
    """Show where the hub's objects lie, or move them to another place."""


@store.command("show")
@data_dir_option
@json_option
def show_places(data_dir: Path, as_json: bool) -> None:
    """Show where the objects lie, how many there are, and a copy that is running or half done.

    Exit status: 0 shown; 1 a place could not be read; 2 could not run.
    """
    running = ""
    with folder_to_read(Settings(data_dir=data_dir)) as reg:
        try:
            check_free(reg, MOVE_LOCK)
        except DataFolderBusy as exc:
            running = exc.holder
        places = show(reg)
    if as_json:
        data = {"places": [place.as_dict() for place in places], "running": running or None}
        click.echo(json.dumps(data, indent=2))
    else:
        lines = [_place_line(place) for place in places]
        if running:
            lines.append(f"a copy is running: {running}")
        click.echo("\n".join(lines or ["the hub has no objects yet"]))
    if any(place.error for place in places):
        raise SystemExit(EXIT_REFUSED)


@store.command("copy")
@click.option(
    "--to", "target", metavar="URL",
    help="Where to: s3://BUCKET/PREFIX, or the word `folder` for the folder in the data folder.",
)  # fmt: skip
@click.option("--abort", "is_given_up", is_flag=True, help="Give up a copy that is half done.")
@click.option(
    "--delete-source", is_flag=True,
    help="At the end, delete the objects in the places that the hub has left, when readers cannot "
    "need them any more (DELTAHUB_READ_LEASE_S after the move).",
)  # fmt: skip
@data_dir_option
@json_option
def copy(
    target: str | None, is_given_up: bool, delete_source: bool, data_dir: Path, as_json: bool
) -> None:
    """Copy the hub's objects to another place, compare them, and let the hub use that place.

    May run beside a hub and its worker, be killed at any moment and run again.

    Exit status: 0 done; 1 refused, or objects are damaged; 2 could not run; 3 another copy runs.
    """
    if (target is None) != is_given_up:
        raise click.UsageError("say where to with --to, or give a copy up with --abort")
    if delete_source and is_given_up:
        raise click.UsageError("--delete-source belongs to --to")
    url = _url_of(target)
    progress = CountLine()
    with opened_folder(Settings(data_dir=data_dir)) as reg, _move_lock(reg):
        try:
            if url is None:
                place = give_up(reg)
                _print_given_up(place.name, as_json)
                return
            moved = move(reg, url, progress, delete_source=delete_source)
        except MoveRefused as exc:
            raise Refused(exc) from exc
        except StoreError as exc:
            raise CannotRun(exc) from exc
        finally:
            progress.end()
    if as_json:
        click.echo(json.dumps(moved.as_dict(), indent=2))
    else:
        click.echo("\n".join(result_lines(moved, delete_source)))
    if not moved.is_done:
        raise SystemExit(EXIT_REFUSED)


def _url_of(target: str | None) -> str | None:
    if target is None:
        return None
    if target == FOLDER:
        return ""
    try:
        S3Location.parse(target)
    except ValueError as exc:
        raise click.UsageError(f"--to {target}: {exc}; or write the word {FOLDER}") from exc
    return target


@contextmanager
def _move_lock(reg: Registry) -> Iterator[None]:
    try:
        with alone(reg, MOVE_LOCK, STORE_COPY):
            yield
    except DataFolderBusy as exc:
        raise InUse(f"another copy is running ({exc.holder}): wait for its end") from exc


def _print_given_up(name: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"given_up": name}))
    else:
        click.echo(f"gave up the copy to {name}; the objects that are there already stay there")


def _place_line(place: ShownPlace) -> str:
    texts = {
        "current": "the objects lie in",
        "previous": "the hub still reads objects that are not copied yet from",
        "target": "a copy is half done to",
        "left": "the hub left",
    }
    line = f"{texts[place.state]} {place.place}"
    if place.error is not None:
        return f"{line}: {place.error}"
    if place.objects is not None and place.bytes is not None:
        return f"{line}: {place.objects} objects ({human_size(place.bytes)})"
    return f"{line} on {(place.since or '')[:19].replace('T', ' ')} UTC"


def result_lines(moved: Moved, delete_source: bool) -> Iterator[str]:
    """What a copy did, for people."""
    copied = moved.copied
    yield f"copied and compared: {copied.objects} objects ({human_size(copied.bytes)})"
    if copied.already_there:
        size = human_size(copied.already_there_bytes)
        yield f"compared, because they were there already: {copied.already_there} objects ({size})"
    if copied.left_behind:
        yield f"left behind, because nothing needs them: {len(copied.left_behind)} objects"
    yield from _object_lines("damaged", copied.damaged)
    yield from _object_lines("copied as it is", copied.as_is)
    if copied.as_is:
        yield "`deltahub scrub --findings` says which files need the damaged objects"
    if copied.damaged:
        where = moved.target if moved.is_switched else moved.source
        yield (
            f"the move has not ended, and the hub uses {where}: mark what is lost with `deltahub"
            " fsck --repair --read-data`, or push it again (a damaged xorb goes by itself within"
            " DELTAHUB_UPLOAD_TTL_S); then run this command again"
        )
    elif moved.deleted or delete_source:
        yield f"deleted from the places that the hub has left: {moved.deleted} objects"
    if moved.is_done:
        yield f"the hub's objects lie in {moved.target}"
        if moved.source != moved.target and not delete_source:
            yield (
                f"those in {moved.source} stay: `deltahub store copy --to {moved.target}"
                " --delete-source` deletes them"
            )


def _object_lines(what: str, why_of: Mapping[str, str]) -> Iterator[str]:
    for key, why in sorted(why_of.items())[:_MOST_LISTED]:
        yield f"{what}: {key}: {why}"
    if len(why_of) > _MOST_LISTED:
        yield f"and {len(why_of) - _MOST_LISTED} more; --json lists all"

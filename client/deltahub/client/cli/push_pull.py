"""`deltahub push` and `deltahub pull`."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from deltahub.client.cli.output import Output, confirm, error_line, hub_options, split_revision
from deltahub.client.errors import HubError
from deltahub.client.hub import Hub
from deltahub.client.interrupts import EXIT_INTERRUPTED
from deltahub.client.progress import count_of, human_size
from deltahub.client.records import PullResult, PushResult


@contextlib.contextmanager
def _stopping_at_once() -> Iterator[None]:
    """Ctrl-C ends the process at once: both commands may be killed at any moment."""

    def stop(number: int, frame: object) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\x1b[?25h\n")  # a progress bar hides the cursor
        context = click.get_current_context(silent=True)
        is_json = context is not None and bool(context.meta.get("deltahub.is_json"))
        text = error_line("interrupted", "interrupted; run it again to go on", is_json=is_json)
        print(text, file=sys.stderr, flush=True)
        os._exit(EXIT_INTERRUPTED)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.argument("name", metavar="NAMESPACE/NAME[@BRANCH]")
@click.option(
    "--base", metavar="NAMESPACE/NAME[@REVISION]", help="What this was made from; none: nothing."
)
@click.option("--revision", help="The branch; by default main.")
@click.option("-m", "--message", help="What changed.")
@click.option("--mirror", is_flag=True, help="Also delete what FOLDER does not have.")
@click.option("--yes", is_flag=True, help="Do not ask before --mirror of nothing deletes all.")
@click.option("--private", is_flag=True, help="Create the repository for its members alone.")
@click.option("--no-wait", is_flag=True, help="Return before the hub has verified everything.")
@click.option("--path", "path_in_repository", help="Name in the repository, for a single file.")
@hub_options
@_stopping_at_once()
def push(
    folder: Path,
    name: str,
    base: str | None,
    revision: str | None,
    message: str | None,
    mirror: bool,
    yes: bool,
    private: bool,
    no_wait: bool,
    path_in_repository: str | None,
    hub: Hub,
    output: Output,
) -> None:
    """Push FOLDER (or one file) as the newest revision of a branch.

    Adds and replaces files; creates the repository if there is none. Returns when the hub has
    stored and verified everything. Repeat it after an interruption: what has arrived stays.
    """
    name, revision = split_revision(name, revision)
    if folder.is_file():
        if mirror:
            raise click.UsageError("--mirror takes a folder, not a file")
        result = hub.upload_file(
            folder,
            name,
            path=path_in_repository,
            base=base,
            revision=revision,
            message=message,
            wait=not no_wait,
            private=private or None,
            progress=output.progress(),
        )
    else:
        if path_in_repository is not None:
            raise click.UsageError("--path takes a single file, not a folder")
        is_empty = mirror and _is_empty(folder)
        if is_empty:
            what = f"every file of {name}@{revision} ({folder} has none)"
            confirm(what, output, is_yes=yes)
        result = hub.push(
            folder,
            name,
            base=base,
            revision=revision,
            message=message,
            mirror=mirror,
            allow_empty=is_empty,
            wait=not no_wait,
            private=private or None,
            progress=output.progress(),
        )
    what = "pushed" if result.changed else "unchanged"
    output.result(
        result,
        f"{what} {name}@{revision} {result.commit[:12]}: {_changes(result, base)}; "
        f"{human_size(result.sent)} sent for {human_size(result.size)}; {result.state}",
    )
    if not no_wait and (folder / "adapter_config.json").is_file():
        _note_adapter(hub, name, result.commit, output)


def _note_adapter(hub: Hub, name: str, commit: str, output: Output) -> None:
    """Say what the hub found out about the adapter, if there is something to do about it."""
    try:
        report = hub.adapter_report(name, commit)
    except HubError:
        return  # an older hub, or the report comes a moment later
    state, way_out = report.get("state"), report.get("way_out")
    if state != "plain":
        output.note(f"the adapter is {state}: {way_out}; `deltahub adapter lint {name}` says why")


def _changes(result: PushResult, base: str | None) -> str:
    if result.changed and not result.added and not result.deleted:
        files = f"{count_of(result.unchanged, 'file')} unchanged"
        return f"{files}, base declared: {base}" if base is not None else f"{files}, a new branch"
    added = count_of(len(result.added), "file")
    return f"{added} added, {len(result.deleted)} deleted, {result.unchanged} unchanged"


def _is_empty(folder: Path) -> bool:
    from deltahub.client.local.folder import list_folder

    return not list_folder(folder).files


@click.command()
@click.argument("names", metavar="NAMESPACE/NAME[@REVISION]...", nargs=-1, required=True)
@click.option("--revision", help="A branch, tag or commit; by default main.")
@click.option(
    "--to", type=click.Path(path_type=Path, file_okay=False), help="A folder of ordinary files."
)
@click.option("--overwrite", is_flag=True, help="Replace files in DIR that no pull left so.")
@click.option(
    "--sha256", is_flag=True, help="Read files that are here already, too, and prove their SHA-256."
)
@click.option("--no-links", is_flag=True, help="Read nothing from the hub's object store itself.")
@click.option("--no-bases", is_flag=True, help="Pull no base first, even if that moves less.")
@click.option("--with-base", is_flag=True, help="Also pull the base that the model names.")
@hub_options
@_stopping_at_once()
def pull(
    names: tuple[str, ...],
    revision: str | None,
    to: Path | None,
    overwrite: bool,
    sha256: bool,
    no_links: bool,
    no_bases: bool,
    with_base: bool,
    hub: Hub,
    output: Output,
) -> None:
    """Pull a revision into the Hugging Face cache, or with --to into a folder.

    What is on this machine already is not moved: a fine-tune costs its difference from the
    base. Every byte is verified. Repeat it after an interruption: what has arrived stays.
    """
    if len(names) > 1:
        if revision or to or overwrite or sha256 or no_links or no_bases or with_base:
            raise click.UsageError("several models are pulled without further options")
        results = hub.pull_together(names, progress=output.progress())
        for each in results:
            _note_sizes(each, output)
        output.result({"items": results}, *(str(each.path) for each in results))
        return
    name, revision = split_revision(names[0], revision)
    base = hub.pull_base(name, revision, progress=output.progress()) if with_base else None
    if base is not None:
        _note_sizes(base, output)
    result = hub.pull_with_report(
        name,
        revision=revision,
        to=to,
        overwrite=overwrite,
        sha256=sha256,
        links=not no_links,
        bases=not no_bases,
        progress=output.progress(),
    )
    _note_sizes(result, output)
    if result.link_failures:
        failed = count_of(result.link_failures, "link")
        output.note(f"{failed} to the object store failed; what was missing came another way")
    if result.replaced:
        output.note(f"replaced yours: {', '.join(result.replaced)}")
    if result.left:
        output.note(f"left there by an earlier pull: {', '.join(result.left)}")
    if base is None:
        output.result(result, str(result.path))
    else:
        shown = {**vars(result), "base": base}
        output.result(shown, str(result.path), str(base.path))


def _note_sizes(result: PullResult, output: Output) -> None:
    files = f"{len(result.fetched_files)} of {count_of(result.files, 'file')}"
    linked = f" ({human_size(result.linked)} by links)" if result.linked else ""
    sizes = f"{human_size(result.received)} received{linked}, {human_size(result.reused)} reused"
    output.note(f"pulled {result.repository}@{result.commit[:12]}: {files}, {sizes}")

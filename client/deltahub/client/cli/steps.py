"""`deltahub steps`: the steps of a run of training."""

from pathlib import Path
from typing import Any, Final, Literal

import click

from deltahub.client.cli.output import Output, hub_options, table, utc_time
from deltahub.client.hub import Hub
from deltahub.client.progress import count_of, human_size

_STEP: Final = click.IntRange(0, 10**12 - 1)
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.group()
def steps() -> None:
    """List, push, pull and export the steps of a run of training.

    A trainer pushes steps from its memory by the SDK (`Hub.push_step`), or from a disk by `deltahub
    steps push`. A step is a revision like others, by the name step-NUMBER: `deltahub pull` and
    `deltahub info` take it, and `deltahub retention RUN --keep N --keep-every K` says which stay.
    """


@steps.command("ls")
@click.argument("run", metavar="NAMESPACE/NAME")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N",
    help="Show the newest N steps.",
)  # fmt: skip
@hub_options
def ls(run: str, limit: int, hub: Hub, output: Output) -> None:
    """List the steps of a run that are there, the newest first."""
    found = hub.steps(run, limit=limit + 1)
    shown = found[:limit]
    rows = [[str(each.number), each.commit[:12], utc_time(each.created_at)] for each in shown]
    lines = table(rows, right=frozenset({0})) if rows else [f"{run} has no steps"]
    output.result({"items": shown}, *lines)
    if len(found) > limit:
        output.note(f"there are more: --limit shows more than {count_of(limit, 'step')}")


@steps.command("push")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("run", metavar="NAMESPACE/NAME")
@click.argument("step", type=_STEP)
@click.option("--after", type=_STEP, metavar="STEP", help="The step that this one follows.")
@click.option(
    "--base", metavar="NAMESPACE/NAME[@REVISION]", help="What the run begins with; none: nothing."
)
@click.option("-m", "--message", help="What changed; by default `Step STEP`.")
@click.option("--public", is_flag=True, help="Create the repository for everybody to read.")
@hub_options
def push(
    folder: Path,
    run: str,
    step: int,
    after: int | None,
    base: str | None,
    message: str | None,
    public: bool,
    hub: Hub,
    output: Output,
) -> None:
    """Push FOLDER as a step of a run, for trainers that write checkpoints to a disk.

    As `deltahub push`; only the first step of a run follows no other one.
    """
    result = hub.push_step_files(
        folder,
        run,
        step,
        after=after,
        base=base,
        private=False if public else True if after is None else None,
        message=message,
        progress=output.progress(),
    )
    what = "pushed" if result.changed else "unchanged"
    output.result(
        result, f"{what} {run}@step-{step} {result.commit[:12]}, sent {human_size(result.sent)}"
    )


@steps.command("pull")
@click.argument("run", metavar="NAMESPACE/NAME")
@click.argument("step", type=_STEP, required=False)
@click.option("--to", type=_FOLDER, help="A folder of ordinary files, not the cache.")
@click.option("--overwrite", is_flag=True, help="With --to: also replace files of your own.")
@hub_options
def pull(
    run: str, step: int | None, to: Path | None, overwrite: bool, hub: Hub, output: Output
) -> None:
    """Pull the files of a step, by default of the newest, as `deltahub pull RUN@step-STEP` does."""
    number = hub.newest_step(run) if step is None else step
    found = hub.pull_with_report(
        run,
        revision=f"step-{number}",
        to=to,
        overwrite=overwrite,
        progress=output.progress(),
    )
    output.result(found, str(found.path))
    output.note(f"step {number}: received {human_size(found.received)}")


@steps.command("export")
@click.argument("run", metavar="NAMESPACE/NAME")
@click.argument("folder", type=_FOLDER)
@click.option(
    "--layout", type=click.Choice(["slime", "skyrl"]), required=True,
    help="slime: versions that SGLang pulls; skyrl: those that SkyRL's workers fetch.",
)  # fmt: skip
@click.option(
    "--since", type=_STEP, metavar="STEP",
    help="The engines have this step as their version 0. Without it the first step is written as a"
    " whole checkpoint.",
)  # fmt: skip
@click.option("--until", type=_STEP, metavar="STEP", help="The last step; by default the newest.")
@click.option(
    "--encoding", type=click.Choice(["xor", "overwrite"]), default="xor", show_default=True,
    help="overwrite, of slime alone, takes more bytes and may be applied twice.",
)  # fmt: skip
@hub_options
def export(
    run: str,
    folder: Path,
    layout: Literal["slime", "skyrl"],
    since: int | None,
    until: int | None,
    encoding: Literal["xor", "overwrite"],
    hub: Hub,
    output: Output,
) -> None:
    """Write the steps of a run in a layout that engines of other systems read.

    Again with the same folder: only what came since is written.
    """
    written = hub.export_steps(
        run,
        folder,
        layout=layout,
        since=since,
        until=until,
        encoding=encoding,
        progress=output.progress(),
    )
    rows: list[list[Any]] = [
        [
            f"step {each.step}",
            f"version {each.version}",
            "whole" if each.is_whole else "difference",
            each.folder or "(the engines have it)",
        ]
        for each in written
    ]
    output.result({"items": written}, *(table(rows) if rows else ["nothing new to write"]))

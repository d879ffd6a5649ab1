"""`deltahub prune`, `deltahub dropped` and `deltahub retention`."""

import re
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import click

from deltahub.client.cli.output import Output, confirm, hub_options, table
from deltahub.client.hub import Hub
from deltahub.client.progress import count_of, human_size
from deltahub.client.records import Rule

_AGE: Final = re.compile(r"(\d{1,9})([smhdw])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def _seconds(ctx: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is no age: write as in 30d, 12h or 2w")
    return int(match[1]) * _UNITS[match[2]]


_RULE: Final = (
    click.option(
        "--keep", type=click.IntRange(min=1), metavar="N",
        help="Keep the last N commits of each branch; 1 without it.",
    ),
    click.option(
        "--keep-every", type=click.IntRange(min=1), metavar="K",
        help="Also keep every K-th commit, counted from the first of its branch.",
    ),
    click.option(
        "--older-than", callback=_seconds, metavar="AGE",
        help="Only drop what is older, as 30d, 12h or 2w.",
    ),
)  # fmt: skip


def _rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return reduce(lambda wrapped, option: option(wrapped), reversed(_RULE), command)


@click.command()
@click.argument("name", metavar="NAMESPACE/NAME")
@_rule_options
@click.option("--dry-run", is_flag=True, help="Only say what would be dropped.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@hub_options
def prune(
    name: str,
    keep: int | None,
    keep_every: int | None,
    older_than: int | None,
    dry_run: bool,
    yes: bool,
    hub: Hub,
    output: Output,
) -> None:
    """Drop old revisions of all branches. Those that stay keep their commit ids.

    Heads and tagged revisions always stay. What is dropped cannot be read any more; it can be taken
    back for a time (`deltahub dropped`), then the hub's garbage collection frees its bytes.
    """
    if keep is None and older_than is None:
        raise click.UsageError("say what stays: --keep N, --older-than AGE, or both")
    rule = Rule(keep or 1, keep_every, older_than)
    would = hub.prune(name, rule, dry_run=True)
    found = count_of(len(would.commits), "revision")
    what = f"{found} of {name}, with {human_size(would.size_bytes)} of files that no other has"
    if dry_run or not would.commits:
        output.result(would, f"would drop {what}; {would.kept} stay")
        return
    confirm(what, output, is_yes=yes)
    pruned = hub.prune(name, rule)
    output.result(
        pruned, f"dropped {count_of(len(pruned.commits), 'revision')}; {pruned.kept} stay"
    )


@click.command()
@click.argument("name", metavar="NAMESPACE/NAME")
@click.option("--take-back", "commit", metavar="COMMIT", help="Take this revision back.")
@click.option("--branch", help="With --take-back: the new branch that gets it.")
@hub_options
def dropped(name: str, commit: str | None, branch: str | None, hub: Hub, output: Output) -> None:
    """List the revisions that were dropped and can be taken back, or take one back."""
    if (commit is None) != (branch is None):
        raise click.UsageError("--take-back COMMIT needs --branch NAME, and the other way round")
    if commit is not None and branch is not None:
        made = hub.take_back(name, commit, branch=branch)
        output.result(made, f"{name}@{made.name} is at {made.commit[:12]}")
        return
    found = hub.dropped(name)
    rows = [
        [
            each.commit[:12],
            each.reason,
            each.by or "by rule",
            f"until {each.until[:16]}",
            each.title,
        ]
        for each in found
    ]
    output.result({"items": found}, *(table(rows) if rows else ["nothing was dropped"]))


@click.command()
@click.argument("target", metavar="NAMESPACE | NAMESPACE/NAME")
@_rule_options
@click.option("--clear", is_flag=True, help="Take the rule away.")
@hub_options
def retention(
    target: str,
    keep: int | None,
    keep_every: int | None,
    older_than: int | None,
    clear: bool,
    hub: Hub,
    output: Output,
) -> None:
    """Show or set what history is kept, of a repository or of all of a namespace.

    The rule is carried out after each commit, as `deltahub prune` would. Without a rule all history
    is kept. A repository's own rule counts instead of its namespace's.
    """
    is_set = keep is not None or keep_every is not None or older_than is not None
    if clear and is_set:
        raise click.UsageError("--clear takes the rule away: leave the other options out")
    if keep is None and older_than is None and keep_every is not None:
        raise click.UsageError("--keep-every needs --keep N, --older-than AGE, or both")
    if clear:
        hub.set_retention(target, None)
        output.result({"target": target}, f"{target} keeps all of its history")
        return
    if is_set:
        hub.set_retention(target, Rule(keep or 1, keep_every, older_than))
    rule = hub.retention(target)
    if rule is None:
        output.result({"target": target}, f"{target} keeps all of its history")
        return
    parts = [f"the last {count_of(rule.keep_last, 'commit')}"]
    parts += [f"every {rule.keep_every}. commit"] if rule.keep_every else []
    parts += [f"what is younger than {rule.older_than_s} s"] if rule.older_than_s else []
    output.result(rule, f"{target} keeps tags, {', '.join(parts)} of each branch ({rule.of})")

"""`deltahub log`, `deltahub prune`, `deltahub dropped` and `deltahub retention`."""

import re
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import click

from deltahub.client.cli.output import (
    Output,
    confirm,
    hub_options,
    split_revision,
    table,
    utc_time,
)
from deltahub.client.hub import Hub
from deltahub.client.progress import count_of, human_size
from deltahub.client.records import Pruned, Rule

_AGE: Final = re.compile(r"(\d+) *([a-z]*)")
_UNITS: Final = {
    "w": ("week", 604800),
    "d": ("day", 86400),
    "h": ("hour", 3600),
    "min": ("minute", 60),
    "s": ("second", 1),
}
_FORMS: Final = "write 90s, 30min, 12h, 30d or 2w"
# The hub's own limits.
_MOST_KEPT: Final = 1_000_000
_MOST_S: Final = 100 * 365 * 86400
# Commits that a question, or a dry run, names.
_NAMED: Final = 10


def _seconds(ctx: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    match = _AGE.fullmatch(text.strip())
    if match is not None and match[2] == "m":
        raise click.BadParameter(f"{text!r} may mean minutes or months: {_FORMS}")
    if match is None or match[2] not in _UNITS:
        raise click.BadParameter(f"{text!r} is no age: {_FORMS}")
    seconds = int(match[1][:12]) * _UNITS[match[2]][1]
    if len(match[1]) > 12 or seconds > _MOST_S:
        raise click.BadParameter(f"{text!r} is too large: at most {_MOST_S // 86400}d")
    return seconds


def _age(seconds: int) -> str:
    """Text such as `2 weeks`, in the largest unit that gives a whole number."""
    noun, size = next(unit for unit in _UNITS.values() if seconds % unit[1] == 0)
    return count_of(seconds // size, noun)


def _ordinal(number: int) -> str:
    """`1st`, `2nd`, `11th`."""
    is_teen = 10 < number % 100 < 14
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


_RULE: Final = (
    click.option(
        "--keep", type=click.IntRange(1, _MOST_KEPT), metavar="N",
        help="Keep the last N commits of each branch; 1 if only --older-than is given.",
    ),
    click.option(
        "--keep-every", type=click.IntRange(1, _MOST_KEPT), metavar="K",
        help="Also keep every K-th commit, counted from the first of its branch. Only beside the "
        "other two.",
    ),
    click.option(
        "--older-than", callback=_seconds, metavar="AGE",
        help="Only drop what is older: 90s, 30min, 12h, 30d or 2w.",
    ),
)  # fmt: skip


def _rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return reduce(lambda wrapped, option: option(wrapped), reversed(_RULE), command)


def _rule(keep: int | None, keep_every: int | None, older_than: int | None) -> Rule:
    """The rule of the options; UsageError if they do not say what stays."""
    if keep is None and older_than is None:
        if keep_every is not None:
            raise click.UsageError("--keep-every needs --keep N, --older-than AGE, or both")
        raise click.UsageError("say what stays: --keep N, --older-than AGE, or both")
    return Rule(keep or 1, keep_every, older_than)


@click.command()
@click.argument("name", metavar="NAMESPACE/NAME[@REVISION]")
@click.option("--revision", help="A branch, tag or commit; by default main.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N",
    help="Show the newest N commits.",
)  # fmt: skip
@hub_options
def log(name: str, revision: str | None, limit: int, hub: Hub, output: Output) -> None:
    """List the commits up to a revision, the newest first."""
    name, revision = split_revision(name, revision)
    # One more than is shown tells whether there are more.
    found = hub.log(name, revision, limit=limit + 1)
    shown = found[:limit]
    rows = [
        [
            each.commit[:12],
            utc_time(each.created_at),
            each.author or "(deleted user)",
            each.title + ("" if each.ingest in (None, "done") else f" (ingest {each.ingest})"),
        ]
        for each in shown
    ]
    output.result({"items": shown}, *table(rows))
    if len(found) > limit:
        output.note(f"there are more: --limit shows more than {count_of(limit, 'commit')}")


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
    rule = _rule(keep, keep_every, older_than)
    would = hub.prune(name, rule, dry_run=True)
    if not would.commits:
        output.result(would, f"nothing to drop; {_stay(would)}")
        return
    what = f"{count_of(len(would.commits), 'revision')} of {name}"
    if dry_run:
        output.result(would, f"would drop {what}; {_stay(would)}", *_dropped_lines(would))
        return
    if not yes:
        for line in _dropped_lines(would):
            output.note(line)
    confirm(what, output, is_yes=yes)
    pruned = hub.prune(name, rule)
    dropped = count_of(len(pruned.commits), "revision")
    output.result(pruned, f"dropped {dropped}; {_stay(pruned)}")


def _stay(pruned: Pruned) -> str:
    return f"{pruned.kept} {'stays' if pruned.kept == 1 else 'stay'}"


def _dropped_lines(would: Pruned) -> list[str]:
    """The first of the commits, and how many bytes go with all of them."""
    lines = [f"  {commit[:12]}" for commit in would.commits[:_NAMED]]
    if len(would.commits) > _NAMED:
        lines.append(f"  and {len(would.commits) - _NAMED} more")
    stored = would.stored_bytes
    less = "" if stored is None else f", {human_size(stored)} as they are stored"
    return [*lines, f"with {human_size(would.size_bytes)} of files as they were uploaded{less}"]


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
            f"until {utc_time(each.until)}",
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

    The rule is carried out some seconds after each commit, as `deltahub prune` would. Without a
    rule all history is kept. A repository's own rule counts instead of its namespace's.
    """
    is_set = any(each is not None for each in (keep, keep_every, older_than))
    if clear and is_set:
        raise click.UsageError("--clear takes the rule away: leave the other options out")
    if clear or is_set:
        hub.set_retention(target, None if clear else _rule(keep, keep_every, older_than))
    rule = hub.retention(target)  # also after --clear: the namespace's may count now
    if rule is None:
        output.result({"target": target}, f"{target} keeps all of its history")
        return
    last = "last commit" if rule.keep_last == 1 else f"last {rule.keep_last} commits"
    parts = [f"the {last} of each branch"]
    if rule.keep_every:
        every = rule.keep_every
        parts.append(f"every {_ordinal(every)} commit (of a run: steps that {every} divides)")
    if rule.older_than_s:
        parts.append(f"what is younger than {_age(rule.older_than_s)}")
    whose = "" if rule.of == target else f", by the rule of {rule.of}"
    output.result(rule, f"{target} keeps tags, {', '.join(parts)}{whose}")

"""`deltahub search`, `ls`, `lineage`, `rm` and `visibility`."""

from typing import Any, get_args

import click

from deltahub.client.cli.output import Output, confirm, hub_options, split_revision, table
from deltahub.client.errors import NotFound, Unauthorized
from deltahub.client.finding import FoundModel, LineageLink, Order, Role
from deltahub.client.hub import Hub
from deltahub.client.progress import count_of, human_size


@click.command()
@click.argument("name", metavar="[NAMESPACE | NAMESPACE/NAME[@REVISION]]", required=False)
@click.option("--search", help="A part of the repository's name.")
@click.option(
    "--sort",
    type=click.Choice(get_args(Order)),
    default="created",
    help="created, changed: the latest first; downloads, size, saved: the most first.",
)
@hub_options
def ls(name: str | None, search: str | None, sort: Any, hub: Hub, output: Output) -> None:
    """List repositories, all or of one namespace; or the files of a repository."""
    if name is not None and "/" in name:
        _list_files(*split_revision(name), hub, output)
        return
    found = hub.list(name, search=search, sort=sort)
    if not found and name is not None and not _is_namespace(name, hub):
        raise NotFound(f"there is no namespace {name} with a repository that you may read")
    rows = [
        [
            each.name,
            "private" if each.private else "public",
            each.role or "",
            each.head or "empty",
            count_of(each.downloads, "download"),
        ]
        for each in found
    ]
    output.result({"items": found}, *(table(rows) if rows else ["no repositories"]))


def _is_namespace(name: str, hub: Hub) -> bool:
    """Whether it is the caller's namespace, or has a repository that the caller may read."""
    try:
        if any(each.name == name for each in hub.whoami().namespaces):
            return True
    except Unauthorized:
        pass  # without a token there is no namespace of one's own
    return bool(hub.list(name))


def _list_files(name: str, revision: str, hub: Hub, output: Output) -> None:
    found = hub.revision(name, revision)
    rows = [[human_size(each.size), each.state, each.path] for each in found.entries]
    lines = table(rows, right=frozenset({0})) if rows else ["no files"]
    output.result(found, f"{name}@{found.commit}", *lines)


@click.command()
@click.argument("name", metavar="NAMESPACE/NAME[@BRANCH]")
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--revision", help="The branch to delete the files from; by default main.")
@click.option("-m", "--message", help="Why, for the commit that deletes files.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@hub_options
def rm(
    name: str,
    paths: tuple[str, ...],
    revision: str | None,
    message: str | None,
    yes: bool,
    hub: Hub,
    output: Output,
) -> None:
    """Delete PATHs in a new revision of a branch; without any, the whole repository.

    Earlier revisions keep a deleted file. A deleted repository is gone with all its revisions, once
    the hub has stored models of others without it that are stored as differences from it.
    """
    if not paths and ("@" in name or revision is not None):
        raise click.UsageError("name the PATHs to delete from that branch")
    name, branch = split_revision(name, revision)
    files = f"{count_of(len(paths), 'file')} of {name}@{branch}"
    what = files if paths else f"{name} with all its revisions"
    confirm(what, output, is_yes=yes)
    if paths:
        result = hub.delete_files(name, paths, revision=branch, message=message)
        output.result(result, f"deleted {what}; now at {result.commit[:12]}")
    else:
        hub.delete(name, progress=output.progress())
        output.result({"deleted": name}, f"deleted {what}")


@click.command()
@click.argument("name", metavar="NAMESPACE/NAME")
@click.argument("wanted", metavar="private|public", type=click.Choice(["private", "public"]))
@hub_options
def visibility(name: str, wanted: str, hub: Hub, output: Output) -> None:
    """Make a repository private or public, with all its revisions.

    To become public takes as long as the hub needs to read all its files; until then it stays
    private. To become private takes as long as the hub needs to store models of others without it
    that are stored as differences from it; until then it stays public. Repeat it after an
    interruption.
    """
    if wanted == "private":
        found = hub.set_private(name, True, progress=output.progress())
    else:
        with output.progress().stage(f"make {name} public", None):
            found = hub.set_private(name, False)
    output.result(found, f"{found.name} is {'private' if found.private else 'public'}")


@click.command()
@click.argument("words", nargs=-1)
@click.option("--namespace", help="Of this user or organization.")
@click.option("--task", help="As model cards name it: text-generation, ...")
@click.option("--library", help="transformers, peft, gguf, ...")
@click.option("--base", metavar="NAMESPACE/NAME", help="Made from this model.")
@click.option("--tag", "tags", multiple=True, help="With this tag; may be repeated.")
@click.option("--dtype", help="With weights of this safetensors dtype: BF16, F32, ...")
@click.option(
    "--role",
    type=click.Choice(get_args(Role)),
    help="What kind of model.",
)
@click.option("--min-parameters", type=click.FloatRange(0), help="At least so many: 7e9")
@click.option("--max-parameters", type=click.FloatRange(0), help="At most so many.")
@click.option("--private", is_flag=True, help="Private ones only.")
@click.option(
    "--sort",
    type=click.Choice(get_args(Order)),
    default="changed",
    help="created, changed: the latest first; downloads, size, saved: the most first.",
)
@click.option("--limit", type=click.IntRange(1), default=30, show_default=True)
@hub_options
def search(
    words: tuple[str, ...],
    min_parameters: float | None,
    max_parameters: float | None,
    hub: Hub,
    output: Output,
    **filters: Any,
) -> None:
    """Find models whose names contain WORDS and that match all options."""
    found = hub.search(" ".join(words), parameters=(min_parameters, max_parameters), **filters)
    rows = [_row(each) for each in found]
    output.result({"items": found}, *(table(rows) if rows else ["no model matches"]))


@click.command()
@click.argument("name", metavar="NAMESPACE/NAME")
@hub_options
def lineage(name: str, hub: Hub, output: Output) -> None:
    """Show what a model derives from, and what derives from it."""
    found = hub.lineage(name)
    relations = {each.name: each.relation or "" for each in found.models}
    rows = [
        [each.parent, "->", each.child, relations.get(each.child, ""), _origin(each)]
        for each in found.links
    ]
    more = [f"and {found.more} more models, at least"] if found.more else []
    lines = table(rows) if rows else [f"{name} has no relatives that you may read"]
    output.result(found, *lines, *more)


def _row(each: FoundModel) -> list[str]:
    stored = ""
    if each.logical_bytes and each.stored_bytes is not None:
        stored = f"{human_size(each.logical_bytes)} stored as {human_size(each.stored_bytes)}"
    return [
        each.name,
        "private" if each.private else "public",
        each.role,
        each.task or "",
        "" if each.base is None else f"of {each.base}",
        stored,
        count_of(each.downloads, "download"),
    ]


def _origin(link: LineageLink) -> str:
    measured = "" if link.share is None else f"{link.share:.1%} measured"
    return ", ".join(filter(None, ("declared" if link.declared else "", measured)))

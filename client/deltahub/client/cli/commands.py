"""The command group `deltahub`. It imports only the command that runs."""

import importlib
import sqlite3
import sys
from typing import NoReturn

import click

from deltahub.client.cli.output import EXIT_FAILED, EXIT_USAGE, exit_status, fail
from deltahub.client.errors import HubError
from deltahub.client.interrupts import EXIT_INTERRUPTED, raise_on_interrupt

# Commands of the client: import path, and the text of `--help`, which imports none of them.
_COMMANDS = {
    "push": ("deltahub.client.cli.push_pull:push", "Push a folder or a file to a repository."),
    "pull": ("deltahub.client.cli.push_pull:pull", "Pull a revision; only what is not here moves."),
    "ls": ("deltahub.client.cli.browse:ls", "List repositories, or the files of one."),
    "search": ("deltahub.client.cli.browse:search", "Find models by what they are."),
    "lineage": ("deltahub.client.cli.browse:lineage", "Show what a model derives from."),
    "info": ("deltahub.client.cli.info:info", "Show how a revision is stored."),
    "steps": ("deltahub.client.cli.steps:steps", "List, push, pull and export the steps of a run."),
    "log": ("deltahub.client.cli.history:log", "List the commits up to a revision."),
    "rm": ("deltahub.client.cli.browse:rm", "Delete files of a branch, or a whole repository."),
    "visibility": (
        "deltahub.client.cli.browse:visibility",
        "Make a repository private, or public.",
    ),
    "prune": ("deltahub.client.cli.history:prune", "Drop old revisions of a repository."),
    "dropped": (
        "deltahub.client.cli.history:dropped",
        "List what was dropped, or take it back.",
    ),
    "retention": (
        "deltahub.client.cli.history:retention",
        "Show or set what history is kept.",
    ),
    "merge": (
        "deltahub.client.cli.asking.merge:merge",
        "Merge fine-tunes of one base, without training.",
    ),
    "compare": (
        "deltahub.client.cli.asking.command:compare",
        "Compare two models, tensor by tensor.",
    ),
    "pissa": ("deltahub.client.cli.asking.adapters:pissa", "Prepare a base for PiSSA adapters."),
    "adapter": ("deltahub.client.cli.asking.adapters:adapter", "Convert adapters to plain LoRA."),
    "base": ("deltahub.client.cli.asking.bases:base", "Upgrade a base with all its adapters."),
    "export": (
        "deltahub.client.cli.asking.exports:export",
        "Compress a model's weights for running.",
    ),
    "jobs": ("deltahub.client.cli.jobs:jobs", "List, watch, cancel and retry background jobs."),
    "login": ("deltahub.client.cli.account:login", "Store a hub's address and your token."),
    "whoami": ("deltahub.client.cli.account:whoami", "Show whose token this is."),
    "token": ("deltahub.client.cli.account:token", "List, make and revoke your own tokens."),
}
# Commands of the service: the extra that installs their imports, and the text of `--help`.
_SERVICE = {
    "serve": ("server", "Run the hub on this machine."),
    "worker": ("worker", "Run background jobs for a hub's data folder."),
    "user": ("server", "Manage users, organizations and tokens."),
    "gc": ("server", "Plan or carry out garbage collection."),
    "recompress": ("server", "Code stored frames smaller, with today's encoders."),
    "fsck": ("server", "Check a hub's data folder."),
    "scrub": ("server", "Prove stored bytes over time, and repair them."),
    "backup": ("server", "Copy a running hub to another place, and prove the copy."),
    "restore": ("server", "Make a hub of a backup, and prove every byte of it."),
    "store": ("server", "Show where a hub's objects lie, or move them to another place."),
    "db": ("server", "Show a hub's database, upgrade it, or move it to PostgreSQL."),
}


class LazyGroup(click.Group):
    """Finds commands by name: the client's by import path, the service's by entry point."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *sorted(_entry_points())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        ctx.meta["deltahub.command"] = cmd_name  # click sets its own only after the import
        if cmd_name in _COMMANDS:
            return _load(_COMMANDS[cmd_name][0])
        path = _entry_points().get(cmd_name)
        return _load(path) if path else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, text) for name, (_, text) in _COMMANDS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        service = [
            (name, _SERVICE[name][1] if name in _SERVICE else "")
            for name in sorted(_entry_points())
        ]
        if service:
            with formatter.section("Commands of the service"):
                formatter.write_dl(service)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["deltahub.is_json"] = "--json" in args
        try:
            return super().parse_args(ctx, args)
        except click.exceptions.NoArgsIsHelpError:
            raise  # it shows the help
        except click.UsageError as exc:
            _fail_with(exc, is_json="--json" in args)

    def invoke(self, ctx: click.Context) -> None:
        """Runs the command; every error becomes one line and an exit status."""
        is_json = bool(ctx.meta["deltahub.is_json"])
        try:
            super().invoke(ctx)
        except HubError as exc:
            fail(exc.code, exc.message, exit_status(exc), is_json=is_json)
        except ModuleNotFoundError as exc:
            name = ctx.meta.get("deltahub.command", "")
            if name not in _SERVICE or (exc.name or "").startswith("deltahub.client"):
                raise
            fail("missing_extra", _extra_message(name, exc), EXIT_USAGE, is_json=is_json)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.ClickException as exc:
            _fail_with(exc, is_json=is_json)
        except (KeyboardInterrupt, click.Abort):
            fail("interrupted", "interrupted", EXIT_INTERRUPTED, is_json=is_json)
        except BrokenPipeError:
            raise  # `deltahub ls | head`: click ends quietly
        except OSError as exc:
            where = f"{exc.filename}: " if exc.filename else ""
            fail("local_error", f"{where}{exc.strerror or exc}", EXIT_FAILED, is_json=is_json)
        except _wrong_kernels() as exc:
            fail("wrong_setting", str(exc), EXIT_USAGE, is_json=is_json)
        except sqlite3.Error as exc:
            # The client's index: the service's commands handle errors of their databases.
            fail("local_error", f"the local index: {exc}", EXIT_FAILED, is_json=is_json)


def _wrong_kernels() -> type[Exception] | tuple[()]:
    """The error for a wrong DELTAHUB_KERNELS, if the codecs have been imported."""
    errors = sys.modules.get("deltahub.codecs.errors")
    return () if errors is None else errors.WrongKernels


def _fail_with(exc: click.ClickException, *, is_json: bool) -> NoReturn:
    """Reports an error of click or of a service's command as the client reports its own."""
    # click lists choices on lines of their own.
    message = " ".join(exc.format_message().split()).rstrip(".")
    if not isinstance(exc, click.UsageError):
        fail(str(getattr(exc, "code", "failed")), message, exc.exit_code, is_json=is_json)
    if exc.ctx is not None and not is_json:
        message += f" (see `{exc.ctx.command_path} --help`)"
    fail("usage_error", message, exc.exit_code, is_json=is_json)


def _entry_points() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {
        point.name: point.value
        for point in entry_points(group="deltahub.commands")
        if point.name not in _COMMANDS
    }


def _load(path: str) -> click.Command:
    module, _, name = path.partition(":")
    command = getattr(importlib.import_module(module), name)
    assert isinstance(command, click.Command), f"{path} is no command"
    raise_on_interrupt()  # from here on the command handles Ctrl-C
    return command


def _extra_message(name: str, exc: ModuleNotFoundError) -> str:
    from deltahub.codecs.errors import how_to_install

    return (
        f"`deltahub {name}` needs {exc.name}, which the base install does not bring: "
        f"{how_to_install(_SERVICE[name][0])}"
    )


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="deltahub")
def group() -> None:
    """DeltaHub: every fine-tune kept as the lossless difference from its base."""

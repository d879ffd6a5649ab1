"""`deltahub merge`."""

from pathlib import Path
from typing import Any

import click

from deltahub.client.cli.asked import command_of
from deltahub.client.errors import InvalidArgument
from deltahub.methods.errors import CannotMerge
from deltahub.methods.kinds.merge import MergeArguments
from deltahub.methods.kinds.mergekit import read_config

_CONFIGS = (".yaml", ".yml")


class MergeCommand(click.Command):
    """Takes a configuration of mergekit, a file, in place of METHOD MODELS... and --base."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].endswith(_CONFIGS):
            args = [*_arguments_of(Path(args[0])), *args[1:]]
        return super().parse_args(ctx, args)


def _arguments_of(path: Path) -> list[str]:
    try:
        found: dict[str, Any] = read_config(path.read_text(encoding="utf-8"))
    except CannotMerge as exc:
        raise InvalidArgument(f"{path}: {exc}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidArgument(f"{path} is no text: {exc}") from exc
    except ModuleNotFoundError as exc:
        raise InvalidArgument(f"{path}: to read it, install PyYAML: pip install pyyaml") from exc
    method, models = found.pop("method"), found.pop("models")
    options = [f"--{name}={value}" for name, value in found.items()]
    return [method, *models, *options]


merge = command_of(MergeArguments, ("method", "models"), MergeCommand)

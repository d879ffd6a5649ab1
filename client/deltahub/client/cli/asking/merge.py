"""`deltahub merge`."""

import itertools
from pathlib import Path
from typing import Any, get_args

import click

from deltahub.client.cli.asking.command import command_of
from deltahub.client.errors import InvalidArgument
from deltahub.methods.errors import CannotMerge
from deltahub.methods.kinds.merge import MergeArguments, Method
from deltahub.methods.kinds.mergekit import read_config

_CONFIGS = (".yaml", ".yml")


class MergeCommand(click.Command):
    """Takes a configuration of mergekit, a file, in place of METHOD MODELS... and --base."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or not args[0].endswith(_CONFIGS):
            return super().parse_args(ctx, args)
        path, rest = Path(args[0]), args[1:]
        bases = [after for at, after in itertools.pairwise(rest) if at == "--base"]
        bases += [each.removeprefix("--base=") for each in rest if each.startswith("--base=")]
        given = _arguments_of(path, bases[-1] if bases else None)
        left = super().parse_args(ctx, [*given, *rest])
        n_models = sum(1 for each in given if not each.startswith("--")) - 1
        others = ctx.params.get("models", ())[n_models:]
        if others:
            raise click.UsageError(f"{path} names the models: leave {', '.join(others)} out", ctx)
        return left


def _arguments_of(path: Path, base: str | None) -> list[str]:
    if not path.is_file():
        raise click.UsageError(f"there is no file {path}")
    try:
        found: dict[str, Any] = read_config(path.read_text(encoding="utf-8"), base)
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
merge.help = f"""{MergeArguments.__doc__}

METHOD is one of {", ".join(get_args(Method))}; or a configuration of mergekit, a file that ends in
.yaml, stands in place of METHOD, MODELS and --base.
"""

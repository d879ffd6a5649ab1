"""`deltahub pissa` and `deltahub adapter`."""

from pathlib import Path

import click

from deltahub.client.cli.asking.command import command_of
from deltahub.client.cli.asking.kits import kit
from deltahub.client.cli.output import Output, hub_options, table
from deltahub.client.hub import Hub
from deltahub.client.local.adapters import lint_folder
from deltahub.client.names import named_revision
from deltahub.methods.adapters.inspection.report import AdapterReport
from deltahub.methods.kinds.bases.pissa_init import PissaInitArguments
from deltahub.methods.kinds.convert_adapter import ConvertAdapterArguments
from deltahub.methods.kinds.extract_adapter import ExtractAdapterArguments
from deltahub.methods.kinds.merge_adapter import MergeAdapterArguments
from deltahub.methods.kinds.transfer_adapter import TransferAdapterArguments


@click.group()
def pissa() -> None:
    """Prepare a base for adapters that start from its principal directions."""


@click.group()
def adapter() -> None:
    """Look at adapters, convert them, make their kits, and move them to another base."""


@adapter.command()
@click.argument("target", metavar="FOLDER|NAME[@REVISION]")
@click.option(
    "--base",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with the base, which an adapter in a folder is compared with.",
)
@hub_options
def lint(target: str, base: Path | None, hub: Hub, output: Output) -> None:
    """Tell whether an adapter is whole, fits its base, and where it can be served.

    FOLDER is on this machine and needs no hub; NAME is an adapter in the hub. The exit status is 1
    if it is broken or quarantined.
    """
    folder = Path(target)
    if not folder.is_dir() and target.startswith((".", "/", "~")):
        raise click.UsageError(f"there is no folder {target}")
    if folder.is_dir():
        report = lint_folder(folder, base)
    else:
        if base is not None:
            raise click.UsageError("--base: the hub knows the base of an adapter that it has")
        name, revision = named_revision(target)
        report = AdapterReport.model_validate(hub.adapter_report(name, revision or "main"))
    output.result(report.model_dump(mode="json"), *report.sentences())
    if report.state in ("broken", "quarantined"):
        raise SystemExit(1)


@adapter.command()
@click.argument("first", metavar="FOLDER|NAME[@REVISION]")
@click.argument("second", metavar="FOLDER|NAME[@REVISION]")
@hub_options
def compare(first: str, second: str, hub: Hub, output: Output) -> None:
    """Tell how alike two plain LoRA adapters are, module by module."""
    found = hub.compare_adapters(first, second)
    rows = [["module", "cosine", "inputs shared", "outputs shared", "norm ratio"]]
    rows += [
        [
            each.module,
            f"{each.cosine:.3f}",
            f"{each.input_overlap:.1%}",
            f"{each.output_overlap:.1%}",
            "-" if each.norm_ratio is None else f"{each.norm_ratio:.2f}",
        ]
        for each in found.modules
    ]
    lines = [*found.sentences(), "", *table(rows, right=frozenset({1, 2, 3, 4}))]
    output.result(found.model_dump(mode="json"), *lines)


@adapter.command()
@click.argument("target", metavar="NAMESPACE[/NAME]")
@click.argument("convert", type=click.Choice(["ask", "auto", "off", "inherit"]), required=False)
@hub_options
def rule(target: str, convert: str | None, hub: Hub, output: Output) -> None:
    """Say, or without a value show, whether adapters that changed their base are converted.

    ask: when somebody asks for it. auto: when they are pushed. off: never, and none is
    quarantined. inherit: remove the rule. A repository's own rule counts before its namespace's.
    """
    if convert is not None:
        hub.set_conversion_rule(target, convert)
    if convert in (None, "inherit"):
        found = hub.conversion_rule(target)
        whose = "the default" if found.source == "default" else f"the rule of the {found.source}"
        told = {"target": target, "convert": found.convert, "source": found.source}
        output.result(told, f"{target}: {found.convert} ({whose})")
        return
    output.result({"target": target, "convert": convert}, f"{target}: {convert}")


adapter.add_command(kit)
pissa.add_command(command_of(PissaInitArguments, ("base",)), "init")
adapter.add_command(command_of(ConvertAdapterArguments, ("adapter",)), "convert")
adapter.add_command(command_of(ExtractAdapterArguments, ("model", "name")), "extract")
adapter.add_command(command_of(MergeAdapterArguments, ("adapter",)), "merge")
adapter.add_command(command_of(TransferAdapterArguments, ("adapter",)), "move")

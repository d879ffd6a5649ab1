"""`deltahub pissa` and `deltahub adapter`."""

import click

from deltahub.client.cli.asking.command import command_of
from deltahub.methods.kinds.convert_adapter import ConvertAdapterArguments
from deltahub.methods.kinds.extract_adapter import ExtractAdapterArguments
from deltahub.methods.kinds.pissa_init import PissaInitArguments


@click.group()
def pissa() -> None:
    """Prepare a base for adapters that start from its principal directions."""


@click.group()
def adapter() -> None:
    """Look at adapters, and convert them to plain LoRA."""


pissa.add_command(command_of(PissaInitArguments, ("base",)), "init")
adapter.add_command(command_of(ConvertAdapterArguments, ("adapter",)), "convert")
adapter.add_command(command_of(ExtractAdapterArguments, ("model", "name")), "extract")

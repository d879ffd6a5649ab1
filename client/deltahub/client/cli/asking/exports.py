"""`deltahub export`."""

import click

from deltahub.client.cli.asking.command import command_of
from deltahub.methods.kinds.export_neuzip import ExportNeuzipArguments


@click.group()
def export() -> None:
    """Make repositories whose weights stay compressed in memory."""


export.add_command(command_of(ExportNeuzipArguments, ("model",)), "neuzip")

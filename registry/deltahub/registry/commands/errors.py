"""Errors of the hub's commands, each with its exit status."""

import click

from deltahub.registry.data_folder import EXIT_BUSY, DataFolderBusy

# Exit statuses that all commands share (docs/cli.md). Other errors exit with 1, as in click.
_EXIT_USAGE = 2


_EXIT_NOT_FOUND = 3


class Refused(click.ClickException):
    """The hub refused a command. --json shows the code of the error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.code = str(getattr(error, "code", "failed"))


class Malformed(Refused):
    exit_code = _EXIT_USAGE


class Absent(Refused):
    exit_code = _EXIT_NOT_FOUND


EXIT_REFUSED = 1


EXIT_ERROR = 2


class CannotRun(Refused):
    """The data folder could not be opened, or reading it failed."""

    exit_code = EXIT_ERROR


class InUse(click.ClickException):
    """Another process has the data folder locked."""

    exit_code = EXIT_BUSY
    code = DataFolderBusy.code

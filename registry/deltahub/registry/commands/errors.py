"""Errors of the hub's commands, each with its exit status."""

import click

from deltahub.registry.data_folder import EXIT_BUSY, DataFolderBusy

# What every command means by these (docs/cli.md); the rest is click's 1.
_EXIT_USAGE = 2


_EXIT_NOT_FOUND = 3


class Refused(click.ClickException):
    """What the hub refuses an operator; --json shows the code of the error."""

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
    """The data folder could not be opened or read to its end."""

    exit_code = EXIT_ERROR


class InUse(click.ClickException):
    """What may only be done while the hub is stopped."""

    exit_code = EXIT_BUSY
    code = DataFolderBusy.code

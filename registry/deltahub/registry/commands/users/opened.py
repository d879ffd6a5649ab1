"""Opens the hub for a command about users, and prints what the command found."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from deltahub.registry.commands.errors import Absent, Malformed, Refused
from deltahub.registry.data_folder import NoHub, require_hub
from deltahub.registry.db.schema import SchemaTooOld
from deltahub.registry.errors import InvalidRequest, NotFound, RegistryError
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import StoreError


@contextmanager
def opened(data_dir: Path, *, to_read: bool = False) -> Iterator[Registry]:
    """The hub in the data folder. Errors of the registry become errors with an exit status.

    to_read: change nothing, so that the folder may be read-only.
    """
    settings = Settings(data_dir=data_dir)
    try:
        require_hub(settings)
        with Registry.open_to_read(settings) if to_read else Registry.open(settings) as reg:
            yield reg
    except InvalidRequest as exc:
        raise Malformed(exc) from exc
    except NotFound as exc:
        raise Absent(exc) from exc
    except (NoHub, SchemaTooOld, RegistryError, StoreError) as exc:
        raise Refused(exc) from exc


def show(as_json: bool, data: Any, text: str) -> None:
    """Print JSON, or the text for people."""
    click.echo(json.dumps(data, default=str) if as_json else text)

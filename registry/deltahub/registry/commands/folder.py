"""Opens the data folder for a command."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sqlalchemy.exc import SQLAlchemyError

from deltahub.registry.commands.errors import CannotRun, InUse
from deltahub.registry.data_folder import (
    GC,
    RECOMPRESS,
    RECOMPRESS_LOCK,
    SERVE_LOCK,
    WORKER_LOCK,
    DataFolderBusy,
    NoHub,
    require_hub,
)
from deltahub.registry.db.schema import SchemaTooOld
from deltahub.registry.errors import RegistryError
from deltahub.registry.leases.locks import alone
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import StoreError

_FAILURES = (NoHub, SchemaTooOld, RegistryError, StoreError, SQLAlchemyError, OSError)


@contextmanager
def opened_folder(settings: Settings) -> Iterator[Registry]:
    """The hub in an existing data folder; CannotRun if it cannot be opened or read."""
    try:
        require_hub(settings)
        with Registry.open(settings) as reg:
            yield reg
    except _FAILURES as exc:
        raise CannotRun(exc) from exc


@contextmanager
def folder_to_read(settings: Settings, *, schema_checked: bool = True) -> Iterator[Registry]:
    """The same for a command that changes nothing: the folder may be read-only.

    schema_checked: see Registry.open_to_read().
    """
    try:
        require_hub(settings)
        with Registry.open_to_read(settings, schema_checked=schema_checked) as reg:
            yield reg
    except _FAILURES as exc:
        raise CannotRun(exc) from exc


@contextmanager
def readers_kept_out(reg: Registry, lease_s: float | None) -> Iterator[None]:
    """Lock out the hub, the worker and recompress if `lease_s` is below DELTAHUB_READ_LEASE_S.

    Readers rely on that setting: gc may delete packs earlier only if no reader runs. InUse.
    """
    needed_s = reg.settings.read_lease_s
    if lease_s is None or lease_s >= needed_s:
        yield
        return
    with ExitStack() as stack:
        try:
            for name in (SERVE_LOCK, WORKER_LOCK, RECOMPRESS_LOCK):
                stack.enter_context(alone(reg, name, GC))
        except DataFolderBusy as exc:
            if exc.command == GC:
                raise InUse(
                    f"another `{GC}` has {exc.place} to itself ({exc.holder}): wait for its end"
                ) from exc
            if exc.command == RECOMPRESS:
                raise InUse(
                    f"`{RECOMPRESS}` is at work in {exc.place} ({exc.holder}): "
                    f"wait for its end before collecting with --lease {lease_s:g}, or leave "
                    "--lease out"
                ) from exc
            raise InUse(
                f"a hub runs on {exc.place} ({exc.holder}), and its "
                f"readers may need a condemned pack for {needed_s} s (DELTAHUB_READ_LEASE_S): "
                f"stop it before collecting with --lease {lease_s:g}, or leave --lease out"
            ) from exc
        yield

"""A hub on several machines: one PostgreSQL, one bucket, and a data folder for each machine."""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import create_engine, make_url, text

from deltahub.registry import Registry
from support.registry.opened import opened_registry
from support.service.postgresql import postgresql_server
from support.service.seaweedfs import S3Service

_TEMPLATE = "migrated"


@dataclass(frozen=True)
class SharedHub:
    """What the machines of a hub share. environment: of each of their processes."""

    database_url: str
    store_url: str
    environment: Mapping[str, str]

    @contextmanager
    def opened(self, folder: Path, **settings: Any) -> Iterator[Registry]:
        """The hub on the machine of this folder. The environment has to be in os.environ."""
        shared = {"database_url": self.database_url, "store_url": self.store_url}
        with opened_registry(folder, **shared, **settings) as reg:
            yield reg

    @property
    def variables(self) -> dict[str, str]:
        """For a process that opens the hub by its settings."""
        return {
            **os.environ,
            **self.environment,
            "DELTAHUB_DATABASE_URL": self.database_url,
            "DELTAHUB_STORE_URL": self.store_url,
        }


@contextmanager
def migrated_server() -> Iterator[str]:
    """The URL of a PostgreSQL server that has an empty hub to copy."""
    with postgresql_server() as server:
        template = _create(server, _TEMPLATE, "template1")
        with TemporaryDirectory() as folder:
            Registry.open(_settings(template, folder)).close()
        _execute(template, "DELETE FROM object_stores")
        yield server


def shared_hub(server: str, service: S3Service) -> SharedHub:
    """A new hub: a database of the server and a prefix of the bucket of its own."""
    url = _create(server, f"hub_{secrets.token_hex(6)}", _TEMPLATE)
    return SharedHub(url, service.store_url(), service.environment)


def _settings(url: str, folder: str) -> Any:
    from deltahub.registry import Settings

    return Settings(data_dir=Path(folder), database_url=url)


def _create(server: str, name: str, template: str) -> str:
    _execute(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    return make_url(server).set(database=name).render_as_string(hide_password=False)


def _execute(url: str, statement: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with closing(engine.connect()) as connection:
            connection.execute(text(statement))
    finally:
        engine.dispose()

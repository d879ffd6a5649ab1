"""One S3 service for the whole suite, and a store for each test."""

from collections.abc import Iterator

import pytest

from deltahub.registry.settings import Settings
from deltahub.registry.storage.s3.store import S3Store
from deltahub.registry.store_url import S3Location
from support.service.machines import SharedHub, migrated_server, shared_hub
from support.service.s3_faults import S3Faults, s3_faults
from support.service.seaweedfs import S3Service, s3_service


@pytest.fixture(scope="session")
def service() -> Iterator[S3Service]:
    with s3_service() as service:
        yield service


@pytest.fixture
def store_url(service: S3Service, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store of its own; the environment leads a hub to it."""
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    return service.store_url()


@pytest.fixture
def faults(service: S3Service) -> Iterator[S3Faults]:
    with s3_faults(service.endpoint) as faults:
        yield faults


@pytest.fixture
def faulty_store(faults: S3Faults, store_url: str) -> Iterator[S3Store]:
    """A store whose requests pass through `faults`."""
    settings = Settings(s3_endpoint=faults.endpoint, s3_retry_s=3, s3_timeout_s=20)
    store = S3Store(S3Location.parse(store_url), settings)
    yield store
    store.close()


@pytest.fixture(scope="session")
def database_server() -> Iterator[str]:
    with migrated_server() as server:
        yield server


@pytest.fixture
def shared(service: S3Service, database_server: str, monkeypatch: pytest.MonkeyPatch) -> SharedHub:
    """A new hub for several machines, which the environment lets find its bucket."""
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    return shared_hub(database_server, service)

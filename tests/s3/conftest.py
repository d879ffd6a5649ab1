"""One S3 service for the whole suite, and a store for each test."""

from collections.abc import Iterator

import pytest

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

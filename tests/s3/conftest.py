"""One S3 service for the whole suite, and a bucket for each test."""

import secrets
from collections.abc import Iterator

import pytest

from support.service.seaweedfs import S3Service, s3_service


@pytest.fixture(scope="session")
def service() -> Iterator[S3Service]:
    with s3_service() as service:
        yield service


@pytest.fixture
def store_url(service: S3Service, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store in a bucket of its own; the environment leads a hub to it."""
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    return service.make_bucket(f"test-{secrets.token_hex(8)}")

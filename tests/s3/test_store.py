"""The store in a bucket fulfils the contract of Store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry.settings import Settings
from deltahub.registry.storage.s3.store import S3Store
from deltahub.registry.store_url import S3Location
from support.stores.store_contract import StoreContract, read_all


@pytest.fixture
def store(store_url: str) -> Iterator[S3Store]:
    store = S3Store(S3Location.parse(store_url), Settings())
    yield store
    store.close()


class TestS3Store(StoreContract):
    pass


def test_a_file_of_many_parts_comes_back(store: S3Store, tmp_path: Path) -> None:
    data = bytes(range(256)) * (40 << 12) + b"odd"
    path = tmp_path / "file"
    path.write_bytes(data)
    store.take_file("landing/x", path)
    assert read_all(store, "landing/x") == data
    assert not path.exists()

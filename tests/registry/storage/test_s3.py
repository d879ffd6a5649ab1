"""A hub on an S3 service: the most important operations. tests/s3 has more."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.settings import Settings
from deltahub.registry.spools.bucket import sizes
from deltahub.registry.storage.s3.store import S3Store
from deltahub.registry.store_url import S3Location
from deltahub.registry.uploads.landing import receive, status
from support.registry.collecting import collect
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry, sha256_of
from support.service.machines import migrated_server, shared_hub
from support.service.seaweedfs import S3Service, s3_service
from support.stores.store_contract import read_all
from support.stores.upload_contract import landed, spooled


@pytest.fixture(scope="module")
def service() -> Iterator[S3Service]:
    with s3_service() as service:
        yield service


@pytest.fixture
def store_url(service: S3Service, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    return service.store_url()


def test_an_object_comes_back_from_a_bucket(store_url: str) -> None:
    store = S3Store(S3Location.parse(store_url), Settings())
    data = bytes(range(256)) * 80_000  # two parts
    store.put("packs/ab/x", [data])
    assert read_all(store, "packs/ab/x") == data
    store.close()


def test_a_hub_keeps_its_files_in_a_bucket(store_url: str, tmp_path: Path) -> None:
    files = {"model.bin": bytes(range(256)) * 1000, "config.json": b"{}"}
    with opened_registry(tmp_path, store_url=store_url) as reg:
        revision = push_ingested(reg, caller(reg, "ann"), "ann/m", files)
    with opened_registry(tmp_path) as reg:
        collect(reg)
        assert list(fsck(reg, read_data=True)) == []
        for path, data in files.items():
            assert read_file(reg, revision, path) == data
    assert [path for path in (tmp_path / "data/objects").rglob("*") if path.is_file()] == []


def test_an_upload_begun_on_one_machine_goes_on_at_another(
    service: S3Service, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "PART_BYTES", 5 << 20)
    data = random.Random(1).randbytes(11 << 20)
    sha256, at = sha256_of(data), 6 << 20
    with migrated_server() as server:
        shared = shared_hub(server, service)
        with shared.opened(tmp_path / "one") as one, shared.opened(tmp_path / "two") as two:
            ann = caller(one, "ann")
            assert receive(one, ann, sha256, len(data), 0, [data[:at]]).received == at
            assert status(two, ann, sha256).received == at
            state = receive(two, ann, sha256, len(data), at, [data[at:]])
            assert landed(one, state) == data
            assert spooled(one) == []

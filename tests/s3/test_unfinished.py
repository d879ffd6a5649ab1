"""Uploads in parts that nobody finished are found, shown and ended by `deltahub gc`."""

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry.commands.maintenance import plan_lines
from deltahub.registry.maintenance.gc.apply import apply_gc
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.storage.base import StoreUnavailable
from deltahub.registry.storage.keys import pack_key
from deltahub.registry.storage.s3.store import S3Store
from support.registry.opened import opened_registry
from support.service.s3_faults import S3Faults
from support.service.seaweedfs import S3Service
from support.stores.store_contract import read_all

PART = b"p" * (5 << 20)


def begin_upload(service: S3Service, store: S3Store, key: str) -> str:
    """An upload of two parts, which its process never finished."""
    client, location = service.client(), store.location
    target = {"Bucket": location.bucket, "Key": location.prefix + key}
    upload = client.create_multipart_upload(**target)["UploadId"]
    for number in (1, 2):
        client.upload_part(**target, UploadId=upload, PartNumber=number, Body=PART)
    return str(upload)


def test_an_upload_that_nobody_finished_is_found_and_ended(
    service: S3Service, faulty_store: S3Store
) -> None:
    store = faulty_store
    upload = begin_upload(service, store, "packs/ab/x")
    store.put("packs/ab/y", [PART * 4])
    [found] = store.unfinished()
    assert (found.id, found.key, found.size) == (upload, "packs/ab/x", 2 * len(PART))
    assert store.discard_unfinished(found)
    assert not store.discard_unfinished(found)
    assert list(store.unfinished()) == []
    assert [info.key for info in store.list("")] == ["packs/ab/y"]


def test_a_put_whose_parts_were_ended_fails_and_shows_nothing(
    faulty_store: S3Store, faults: S3Faults
) -> None:
    store = faulty_store

    def end_all() -> None:
        # One that a part reached after it was listed is not ended, so it is listed again.
        while not all([store.discard_unfinished(put) for put in store.unfinished()]):
            pass

    def chunks() -> Iterator[bytes]:
        for _ in range(4):
            yield PART
        end_all()
        yield PART

    with pytest.raises(StoreUnavailable):
        store.put("a", chunks())
    assert list(store.list("")) == []


def test_gc_ends_uploads_that_have_not_grown_for_a_day(
    service: S3Service,
    faulty_store: S3Store,
    faults: S3Faults,
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin_upload(service, faulty_store, pack_key(secrets.token_hex(16)))
    begin_upload(service, faulty_store, "of/somebody/else")
    monkeypatch.setenv("DELTAHUB_S3_ENDPOINT", faults.endpoint)
    with opened_registry(tmp_path, store_url=store_url) as reg:
        young = plan_gc(reg)
        assert young.unfinished == ()
        assert any("puts that have not ended" in line for line in plan_lines(young))
        dates = re.compile(rb"(Initiated>|LastModified>)2\d\d\d(?=-)")
        faults.edit("ListMultipartUploads", lambda body: dates.sub(rb"\g<1>2021", body))
        faults.edit("ListParts", lambda body: dates.sub(rb"\g<1>2021", body))
        old = plan_gc(reg)
        assert [put.size_bytes for put in old.unfinished] == [2 * len(PART)]
        assert old.freed_bytes == 2 * len(PART)
        assert apply_gc(reg, old).unfinished == 1
        assert [put.key for put in reg.store.unfinished()] == ["of/somebody/else"]


def test_a_failed_put_leaves_no_parts(faulty_store: S3Store, faults: S3Faults) -> None:
    faults.refuse("UploadPart", 403, "AccessDenied")
    with pytest.raises(StoreUnavailable, match="AccessDenied"):
        faulty_store.put("a", [PART] * 12)
    assert list(faulty_store.unfinished()) == []
    faulty_store.put("a", [PART] * 12)
    assert read_all(faulty_store, "a") == PART * 12

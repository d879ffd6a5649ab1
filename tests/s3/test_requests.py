"""What requests hold besides the bytes: encryption, the owner, credentials; and links."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from time import sleep
from typing import Any
from urllib.parse import urlsplit

import pytest

from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import StoreError, StoreUnavailable
from deltahub.registry.storage.s3.store import S3Store
from deltahub.registry.store_url import S3Location
from support.service.s3_faults import S3Faults
from support.service.seaweedfs import SECRET, S3Service

LARGE = [b"x" * (17 << 20)]


@contextmanager
def opened(store_url: str, **settings: Any) -> Iterator[S3Store]:
    store = S3Store(S3Location.parse(store_url), Settings(s3_retry_s=1, **settings))
    yield store
    store.close()


@pytest.mark.parametrize(("encryption", "key"), [("AES256", None), ("aws:kms", "the-key")])
def test_each_object_is_begun_with_the_encryption_that_is_set(
    store_url: str, faults: S3Faults, encryption: str, key: str | None
) -> None:
    settings = {"s3_encryption": encryption, "s3_kms_key": key, "s3_endpoint": faults.endpoint}
    with opened(store_url, **settings) as store:
        for chunks in ([b"small"], LARGE):
            with suppress(StoreError):  # the test's service may know no encryption
                store.put("a", chunks)
    begun = [r for r in faults.requests if r.operation in ("PutObject", "CreateMultipartUpload")]
    assert {r.operation for r in begun} == {"PutObject", "CreateMultipartUpload"}
    for request in begun:
        assert request.headers["x-amz-server-side-encryption"] == encryption
        assert request.headers.get("x-amz-server-side-encryption-aws-kms-key-id") == key


def test_every_request_names_the_owner_of_the_bucket(
    store_url: str, faults: S3Faults, tmp_path: Path
) -> None:
    with opened(store_url, s3_bucket_owner="123456789012", s3_endpoint=faults.endpoint) as store:
        store.set_mark("0123")
        assert store.mark() == "0123"
        store.put("a", LARGE)
        faults.refuse("UploadPart", 403, "AccessDenied")
        with pytest.raises(StoreUnavailable):
            store.put("b", LARGE)
        (tmp_path / "file").write_bytes(b"x")
        store.take_file("c", tmp_path / "file")
        store.put_together({"d": b"x", "e": b"x"})
        store.get_into("a", 5, memoryview(bytearray(10)))
        assert len(list(store.list(""))) == 4
        assert list(store.unfinished()) == []
        store.delete("a")
        store.delete_together(["c", "d", "e"])
    assert len({request.operation for request in faults.requests}) == 11
    for request in faults.requests:
        assert request.headers.get("x-amz-expected-bucket-owner") == "123456789012", request


def status_of(url: str, byte_range: str | None) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=30)
    headers = {} if byte_range is None else {"Range": f"bytes={byte_range}"}
    connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_a_link_gives_its_range_and_nothing_else(service: S3Service, store_url: str) -> None:
    with opened(store_url) as store:
        store.put("packs/ab/x", [b"0123456789"])
        link = store.link("packs/ab/x", 3, 7, 60)
        assert status_of(link, "3-6") == (206, b"3456")
        for other in ("3-7", "0-9", "2-6", None):
            assert status_of(link, other)[0] == 403, other
        assert status_of(link.replace("Expires=60", "Expires=61"), "3-6")[0] == 403
        assert status_of(link.replace("/x?", "/y?"), "3-6")[0] == 403
        brief = store.link("packs/ab/x", 3, 7, 1)
        sleep(2.1)
        assert status_of(brief, "3-6")[0] == 403
        assert SECRET not in link


def test_a_link_is_on_the_endpoint_of_clients(store_url: str) -> None:
    with opened(store_url, s3_link_endpoint="https://s3.example.org") as store:
        link = urlsplit(store.link("packs/ab/x", 0, 5, 60))
        assert (link.scheme, link.netloc) == ("https", "s3.example.org")
        assert link.path == f"/{store.location.bucket}/{store.location.prefix}packs/ab/x"
        assert "X-Amz-SignedHeaders=host%3Brange" in link.query
        for start, end, lifetime_s in ((5, 5, 60), (-1, 5, 60), (0, 5, 0), (0, 5, 10**7)):
            with pytest.raises(ValueError, match="no link"):
                store.link("packs/ab/x", start, end, lifetime_s)


def test_wrong_credentials_are_named_and_never_printed(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with opened(store_url) as store:
        for read in (store.mark, lambda: store.put("a", [b"x"])):
            with pytest.raises(StoreUnavailable, match="AWS_ACCESS_KEY_ID") as raised:
                read()
            assert "not-the-secret" not in str(raised.value)


def test_no_credentials_are_said_so(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with opened(store_url) as store:
        for read in (store.mark, lambda: store.get_into("a", 0, memoryview(bytearray(1)))):
            with pytest.raises(StoreUnavailable, match="set AWS_ACCESS_KEY_ID"):
                read()


def test_an_endpoint_that_nobody_answers_is_named_without_its_password(store_url: str) -> None:
    with opened(store_url, s3_endpoint="http://ann:pass@127.0.0.1:9") as store:
        with pytest.raises(StoreUnavailable, match="DELTAHUB_S3_ENDPOINT") as raised:
            store.size("a")
        assert "127.0.0.1:9" in str(raised.value)
        assert "pass@" not in str(raised.value)

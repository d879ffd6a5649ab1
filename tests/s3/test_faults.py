"""A put ends right, or says that it did not, whatever happens to its requests and their answers."""

import hashlib
from base64 import b64encode
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import (
    ObjectNotFound,
    ShortObject,
    StoreFull,
    StoreUnavailable,
)
from deltahub.registry.storage.s3.errors import translation
from deltahub.registry.storage.s3.store import S3Store
from deltahub.registry.store_url import S3Location
from support.service.s3_faults import S3Faults
from support.service.seaweedfs import S3Service
from support.stores.store_contract import read_all

LARGE = bytes(range(251)) * 140_000  # three parts


@pytest.fixture
def store(faulty_store: S3Store) -> S3Store:
    return faulty_store


def test_a_put_whose_answer_was_lost_is_repeated(store: S3Store, faults: S3Faults) -> None:
    faults.lose_answer("PutObject")
    store.put("a", [b"bytes"])
    assert read_all(store, "a") == b"bytes"
    assert faults.count("PutObject") == 2


@pytest.mark.parametrize(
    "operation", ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "HeadObject"]
)
def test_a_large_put_whose_answer_was_lost_ends_right(
    store: S3Store, faults: S3Faults, operation: str
) -> None:
    store.put("a", [b"x" * len(LARGE)])
    faults.lose_answer(operation)
    store.put("a", [LARGE])
    assert read_all(store, "a") == LARGE


def test_an_older_object_of_the_same_size_does_not_prove_an_upload(
    store: S3Store, faults: S3Faults
) -> None:
    store.put("a", [b"x" * len(LARGE)])
    faults.refuse("CompleteMultipartUpload", 404, "NoSuchUpload")
    with pytest.raises(StoreUnavailable, match="NoSuchUpload"):
        store.put("a", [LARGE])
    assert list(store.unfinished()) == []


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "SlowDown"), (500, "InternalError"), (429, "TooManyRequests"), (502, "BadGateway"),
     (400, "RequestTimeout"), (400, "BadDigest")],
)  # fmt: skip
def test_what_fails_for_a_moment_is_repeated(
    store: S3Store, faults: S3Faults, status: int, code: str
) -> None:
    faults.refuse("", status, code, times=2)
    store.put("a", [b"bytes"])
    # An answer to HEAD has no body, and so no code.
    faults.refuse("GetObject" if status == 400 else "", status, code, times=2)
    assert read_all(store, "a") == b"bytes"
    faults.refuse("", status, code, times=2)
    store.delete("a")
    faults.refuse("", status, code, times=2)
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    ("status", "code", "way_out"),
    [(403, "AccessDenied", "DELTAHUB_S3_BUCKET_OWNER"), (404, "NoSuchBucket", "create the bucket"),
     (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"), (403, "SignatureDoesNotMatch", "secret"),
     (400, "AuthorizationHeaderMalformed", "DELTAHUB_S3_REGION"), (403, "RequestTimeTooSkewed",
      "clock"), (400, "KMS.DisabledException", "DELTAHUB_S3_KMS_KEY")],
)  # fmt: skip
def test_what_does_not_pass_is_said_at_once_with_the_way_out(
    store: S3Store, faults: S3Faults, status: int, code: str, way_out: str
) -> None:
    faults.refuse("PutObject", status, code, times=9)
    with pytest.raises(StoreUnavailable, match=way_out) as raised:
        store.put("packs/a", [b"bytes"])
    assert faults.count("PutObject") == 1
    for name in ("packs/a", store.location.bucket, faults.endpoint, code):
        assert name in str(raised.value)


@pytest.mark.parametrize(
    ("status", "code"),
    [(507, "InsufficientStorage"), (403, "QuotaExceeded"), (507, "XMinioStorageFull")],
)
def test_a_full_service_is_a_full_store(
    store: S3Store, faults: S3Faults, status: int, code: str
) -> None:
    faults.refuse("PutObject", status, code)
    with pytest.raises(StoreFull, match="quota"):
        store.put("a", [b"bytes"])


def test_requests_are_repeated_no_longer_than_the_setting_says(
    store: S3Store, faults: S3Faults
) -> None:
    faults.refuse("HeadObject", 503, "SlowDown", times=1000)
    with pytest.raises(StoreUnavailable, match="503"):
        store.size("a")
    assert 2 < faults.count("HeadObject") < 60


def test_a_body_that_was_cut_short_is_read_again(store: S3Store, faults: S3Faults) -> None:
    store.put("a", [LARGE])
    faults.cut_body("GetObject", 1000, times=2)
    assert read_all(store, "a") == LARGE


def test_a_stored_checksum_that_differs_is_no_success(
    store: S3Store, faults: S3Faults, tmp_path: Path
) -> None:
    faults.set_headers("PutObject", x_amz_checksum_crc32="AAAAAA==", times=2)
    store.put("a", [b"bytes"])
    assert faults.count("PutObject") == 3
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    faults.set_headers("PutObject", x_amz_checksum_crc32="AAAAAA==")
    with pytest.raises(StoreUnavailable, match="CRC32"):
        store.take_file("a", path)
    assert path.exists()


@pytest.mark.parametrize("data", [b"bytes", LARGE], ids=["small", "large"])
def test_a_service_without_checksums_proves_by_the_etag(
    store: S3Store, faults: S3Faults, data: bytes
) -> None:
    faults.set_headers("", x_amz_checksum_crc32=None)
    store.put("a", [data])
    assert read_all(store, "a") == data
    assert faults.count("PutObject") + faults.count("UploadPart") == (1 if data == b"bytes" else 3)


def test_a_service_without_checksums_whose_etag_is_no_md5_gets_content_md5(
    store: S3Store, faults: S3Faults
) -> None:
    faults.set_headers("", x_amz_checksum_crc32=None, etag='"of-another-kind"')
    store.put("a", [b"bytes"])
    store.put("b", [b"bytes"])
    sent = [r.headers.get("content-md5") for r in faults.requests if r.operation == "PutObject"]
    md5 = b64encode(hashlib.md5(b"bytes").digest()).decode()
    assert sent == [None, md5, md5]


@pytest.mark.parametrize("code", ["MissingContentMD5", "NotImplemented"])
def test_a_service_that_deletes_one_by_one_does_so(
    store: S3Store, faults: S3Faults, code: str
) -> None:
    store.put_together({f"landing/{i}": b"x" for i in range(5)})
    faults.refuse("DeleteObjects", 400, code, times=9)
    store.delete_together([f"landing/{i}" for i in range(3)])
    store.delete_together(["landing/3", "landing/4", "never/was"])
    assert list(store.list("")) == []
    assert faults.count("DeleteObjects") == 1


def test_a_key_that_was_not_deleted_is_an_error(store: S3Store, faults: S3Faults) -> None:
    store.put_together({"a": b"x", "b": b"x"})
    faults.refuse("DeleteObjects", 400, "MissingContentMD5")
    faults.refuse("DeleteObject", 403, "AccessDenied")
    with pytest.raises(StoreUnavailable, match="AccessDenied"):
        store.delete_together(["a", "b"])


def test_a_missing_bucket_is_no_missing_object(service: S3Service, store_url: str) -> None:
    location = S3Location("there-is-none-of-this-name", "hub/")
    store = S3Store(location, Settings(s3_retry_s=1))
    for read in (
        lambda: store.size("a"),
        lambda: store.get_into("a", 0, memoryview(bytearray(1))),
        lambda: list(store.list("")),
        store.mark,
    ):
        with pytest.raises(StoreUnavailable, match=r"create the bucket, or name another one$"):
            read()
    store.close()


def test_an_error_at_aws_says_how_to_name_another_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")  # nobody listens there
    store = S3Store(S3Location("bucket", "hub/"), Settings(s3_endpoint=None, s3_retry_s=0))
    with pytest.raises(StoreUnavailable, match=r"at AWS.*DELTAHUB_S3_ENDPOINT, or .*[?]endpoint="):
        store.mark()
    store.close()
    location = S3Location("bucket")
    for code, is_said in (
        ("InvalidAccessKeyId", True),
        ("NoSuchBucket", True),
        ("SlowDown", False),
    ):
        error = ClientError({"Error": {"Code": code}}, "GetObject")
        assert ("?endpoint=" in str(translation(location, None, "key", error))) == is_said
        assert "?endpoint=" not in str(translation(location, "http://one", "key", error))


def test_in_an_emptied_or_replaced_bucket_no_object_is_missing(
    service: S3Service, store: S3Store
) -> None:
    store.set_mark("0123")
    with pytest.raises(ObjectNotFound):
        store.size("a")
    mark = {"Bucket": store.location.bucket, "Key": f"{store.location.prefix}.deltahub"}
    for away in ("emptied", "replaced"):
        service.client().delete_object(**mark)
        if away == "replaced":
            service.client().put_object(**mark, Body=b"4567")
        with pytest.raises(StoreUnavailable, match="another bucket"):
            store.size("a")
        with pytest.raises(StoreUnavailable, match="another bucket"):
            store.get_into("a", 0, memoryview(bytearray(1)))
    service.client().put_object(**mark, Body=b"0123")
    with pytest.raises(ObjectNotFound):
        store.size("a")


def test_an_object_that_is_too_short_is_not_asked_for_again(
    store: S3Store, faults: S3Faults
) -> None:
    store.put("a", [b"0123456789"])
    for start in (5, 10):
        with pytest.raises(ShortObject, match="10 bytes"):
            store.get_into("a", start, memoryview(bytearray(8)))
    assert faults.count("GetObject") <= 4

"""Sends the body of an object or of a part, and proves that the service has the same bytes."""

from collections.abc import Callable
from functools import partial
from typing import Any

from deltahub.registry.storage.s3.connection import Connection
from deltahub.registry.storage.s3.errors import REQUEST_ERRORS, IncompleteAnswer
from deltahub.registry.storage.s3.retry import retried
from deltahub.registry.storage.s3.uploads.parts import FilePart, content_md5, crc32_of, md5_of

Body = bytes | bytearray | FilePart


def send_body(
    connection: Connection,
    key: str,
    operation: str,
    body: Body,
    check: Callable[[], None],
    **given: Any,
) -> dict[str, Any]:
    """The answer to put_object or upload_part, once it proves the bytes; StoreError.

    The answer has the CRC32 of the body, even if the service does not know it.

    The service checks the CRC32 that comes with the body, and its answer repeats it. A service
    that knows no CRC32 repeats none. Its answer proves the bytes if the ETag is their MD5. Where it
    is not, as of an encrypted object, the body is sent with Content-MD5, which every S3 service
    checks. From then on all bodies go with it.
    """
    once = partial(_send_once, connection, operation, body, given, crc32_of(body))
    try:
        return retried(once, connection.settings.s3_retry_s, check)
    except REQUEST_ERRORS as exc:
        raise connection.error(key, exc) from exc


def _send_once(
    connection: Connection, operation: str, body: Body, given: dict[str, Any], crc32: str
) -> dict[str, Any]:
    answer, md5 = _request(connection, operation, body, given, crc32)
    found = answer.get("ChecksumCRC32")
    if found is None and md5 is None:
        connection.sends_md5 = True
        md5 = md5_of(body)
        if answer.get("ETag", "").strip('"') != md5.hex():
            answer, _ = _request(connection, operation, body, given, crc32)
            found = answer.get("ChecksumCRC32")
    if found is not None and found != crc32:
        raise IncompleteAnswer(f"the service stored bytes of CRC32 {found}; {crc32} was sent")
    return {**answer, "ChecksumCRC32": crc32}


def _request(
    connection: Connection, operation: str, body: Body, given: dict[str, Any], crc32: str
) -> tuple[dict[str, Any], bytes | None]:
    """The answer, and the MD5 that was sent."""
    headers = {"ChecksumCRC32": crc32}
    md5 = md5_of(body) if connection.sends_md5 else None
    if md5 is not None:
        headers["ContentMD5"] = content_md5(md5)
    if isinstance(body, FilePart):
        body.seek(0)
    method = getattr(connection.client, operation)
    bucket = connection.location.bucket
    answer = method(Bucket=bucket, Body=body, **headers, **connection.owner, **given)
    return dict(answer), md5

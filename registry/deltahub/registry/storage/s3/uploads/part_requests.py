"""The requests of an upload in parts, which one process may begin and another one finish."""

from collections.abc import Callable, Sequence
from typing import Any

from deltahub.registry import cancellation
from deltahub.registry.storage.base import PartsLost, SentPart
from deltahub.registry.storage.s3.connection import Connection
from deltahub.registry.storage.s3.errors import (
    REQUEST_ERRORS,
    BucketPartsLost,
    is_absent,
)
from deltahub.registry.storage.s3.uploads.bodies import Body, send_body
from deltahub.registry.storage.s3.uploads.parts import FilePart, crc32_of_parts, etag_of_parts


class PartRequests:
    """A PartStore in a bucket. Safe to share between threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, key: str) -> str:
        connection = self._connection
        answer = connection.call(
            key,
            "create_multipart_upload",
            Key=connection.key(key),
            ChecksumAlgorithm="CRC32",
            **connection.encryption,
        )
        return str(answer["UploadId"])

    def send(self, key: str, upload_id: str, number: int, fd: int, size: int) -> SentPart:
        body = FilePart(fd, 0, size)
        return self.send_body(key, upload_id, number, body, size, cancellation.check)

    def send_body(
        self,
        key: str,
        upload_id: str,
        number: int,
        body: Body,
        size: int,
        check: Callable[[], None],
    ) -> SentPart:
        """Send a part. check: raises when nobody waits for the part any more."""
        answer = send_body(
            self._connection,
            key,
            "upload_part",
            body,
            check,
            Key=self._connection.key(key),
            UploadId=upload_id,
            PartNumber=number,
        )
        return SentPart(number, size, answer["ETag"], answer["ChecksumCRC32"])

    def finish(self, key: str, upload_id: str, parts: Sequence[SentPart]) -> bool:
        try:
            return self.complete(key, upload_id, parts)
        except PartsLost:
            # Another process may have completed it, whose answer nobody got.
            is_proved = self.is_there(key, parts)
            if is_proved is None:
                raise
            return is_proved

    def complete(self, key: str, upload_id: str, parts: Sequence[SentPart]) -> bool:
        """As finish(), but PartsLost if the upload has ended, however it did."""
        connection = self._connection
        named = [
            {"PartNumber": part.number, "ETag": part.etag, "ChecksumCRC32": part.crc32}
            for part in parts
        ]
        try:
            connection.request(
                "complete_multipart_upload",
                Key=connection.key(key),
                UploadId=upload_id,
                MultipartUpload={"Parts": named},
            )
        except REQUEST_ERRORS as exc:
            raise connection.error(key, exc) from exc
        # A service may say that it completed an upload of that id which had other parts.
        is_proved = self.is_there(key, parts)
        if is_proved is None:
            raise BucketPartsLost(
                f"{key}: the service completed an upload of {_size(parts)} bytes, and does not have"
                " the object, or another one"
            )
        return is_proved

    def is_there(self, key: str, parts: Sequence[SentPart]) -> bool | None:
        """Whether checksums prove that the object has these parts. False: only its size is right.

        None: there is no such object, or it is another one.
        """
        head = self._head(key)
        if head is None or head["ContentLength"] != _size(parts):
            return None
        crc32 = head.get("ChecksumCRC32", "")
        if "-" in crc32:
            return True if crc32 == crc32_of_parts(parts) else None
        return etag_of_parts(parts) == str(head["ETag"]).strip('"')

    def abort(self, key: str, upload_id: str) -> None:
        connection = self._connection
        connection.call(key, "abort_multipart_upload", Key=connection.key(key), UploadId=upload_id)

    def _head(self, key: str) -> dict[str, Any] | None:
        connection = self._connection
        try:
            head = connection.request(
                "head_object", Key=connection.key(key), ChecksumMode="ENABLED"
            )
        except REQUEST_ERRORS as exc:
            if is_absent(exc):
                return None
            raise connection.error(key, exc) from exc
        return dict(head)


def _size(parts: Sequence[SentPart]) -> int:
    return sum(part.size for part in parts)

"""Reads ranges of objects over a pool of connections.

The first attempt signs and sends a request itself, which takes half of the processor time that
boto3 takes for it. All that is not the expected answer goes to boto3, which knows the errors.
"""

import threading
from functools import cached_property
from typing import Any, Final

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies
from urllib3.exceptions import HTTPError

from deltahub.registry.storage.base import ShortObject
from deltahub.registry.storage.s3.connection import Connection
from deltahub.registry.storage.s3.errors import (
    REQUEST_ERRORS,
    TRANSIENT_STATUS,
    BucketUnavailable,
    IncompleteAnswer,
    code_of,
)
from deltahub.registry.storage.s3.presence import Presence
from deltahub.registry.storage.s3.retry import retried

# Bytes that are taken from the connection at once: they stay in the processor's cache.
_PIECE_BYTES: Final = 128 << 10


class RangeReader:
    """Fills buffers with ranges of objects. Safe to share between threads."""

    def __init__(self, connection: Connection, presence: Presence) -> None:
        self._connection = connection
        self._presence = presence
        self._lock = threading.Lock()

    def read(self, key: str, start: int, out: memoryview) -> None:
        """Fill all of `out`; ObjectNotFound, ShortObject. A body that was cut short is retried."""
        is_first = True

        def once() -> None:
            nonlocal is_first
            directly, is_first = is_first, False
            if not (directly and self._read_directly(key, start, out)):
                self._read_by_client(key, start, out)

        try:
            retried(once, self._connection.settings.s3_retry_s)
        except REQUEST_ERRORS as exc:
            raise self._presence.error(key, exc) from exc

    def size(self, key: str) -> int:
        try:
            head = self._connection.request("head_object", Key=self._connection.key(key))
        except REQUEST_ERRORS as exc:
            raise self._presence.error(key, exc) from exc
        return int(head["ContentLength"])

    def close(self) -> None:
        if "_made_http" in self.__dict__:
            self._made_http.close()

    def _read_directly(self, key: str, start: int, out: memoryview) -> bool:
        """Whether the answer had all bytes. Otherwise the client is to ask."""
        connection = self._connection
        credentials = connection.session.get_credentials()
        if credentials is None:
            return False
        headers = {"Range": _range(start, out)}
        if connection.owner:
            headers["x-amz-expected-bucket-owner"] = connection.owner["ExpectedBucketOwner"]
        request = AWSRequest("GET", self._url + key, headers, stream_output=True)
        request.context["client_config"] = connection.client.meta.config
        region = connection.client.meta.region_name
        S3SigV4Auth(credentials.get_frozen_credentials(), "s3", region).add_auth(request)
        answer = self._http.send(request.prepare())
        try:
            if answer.status_code in TRANSIENT_STATUS:
                raise HTTPError(f"the service answered {answer.status_code}")
            length = answer.headers.get("Content-Length")
            if answer.status_code != 206 or length != str(out.nbytes):
                return False
            _fill(answer.raw, out)
        finally:
            answer.raw.close()
        return True

    def _read_by_client(self, key: str, start: int, out: memoryview) -> None:
        client, end = self._connection.client, start + out.nbytes
        try:
            answer = client.get_object(
                Bucket=self._connection.location.bucket,
                Key=self._connection.key(key),
                Range=_range(start, out),
                **self._connection.owner,
            )
        except REQUEST_ERRORS as exc:
            if code_of(exc) not in ("InvalidRange", "416"):
                raise
            self._check_size(key, self.size(key), start, end)
            raise IncompleteAnswer("the object grew while it was read") from exc
        with answer["Body"] as body:
            content_range = answer.get("ContentRange")
            if content_range is not None:
                self._check_size(key, int(content_range.rpartition("/")[2]), start, end)
            elif start == 0:
                self._check_size(key, answer["ContentLength"], start, end)
            else:
                raise BucketUnavailable(f"{key}: the service does not know ranges of objects")
            _fill(body, out)

    def _check_size(self, key: str, size: int, start: int, end: int) -> None:
        if size < end:
            raise ShortObject(f"{key} has {size} bytes; {start}..{end} were asked")

    @cached_property
    def _made_url(self) -> str:
        """The URL of the store's prefix in the bucket, as boto3 makes it."""
        connection = self._connection
        params = {"Bucket": connection.location.bucket, "Key": connection.key("x")}
        link = str(connection.client.generate_presigned_url("get_object", Params=params))
        return link.partition("?")[0].removesuffix("x")

    @property
    def _url(self) -> str:
        with self._lock:
            return self._made_url

    @property
    def _http(self) -> Any:
        with self._lock:
            return self._made_http

    @cached_property
    def _made_http(self) -> Any:
        connection, settings = self._connection, self._connection.settings
        return URLLib3Session(
            verify=connection.certificates,
            proxies=get_environ_proxies(self._made_url),
            timeout=(settings.s3_timeout_s, settings.s3_timeout_s),
            max_pool_connections=settings.s3_connections,
        )


def _range(start: int, out: memoryview) -> str:
    return f"bytes={start}-{start + out.nbytes - 1}"


def _fill(body: Any, out: memoryview) -> None:
    n = 0
    while n < out.nbytes:
        read = body.readinto(out[n : n + _PIECE_BYTES])
        if not read:
            raise IncompleteAnswer(f"the answer ended after {n} of {out.nbytes} bytes")
        n += read

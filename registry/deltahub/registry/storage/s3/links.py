"""Links to a range of an object, which a client follows without credentials until they expire."""

import threading
from typing import Any

from deltahub.registry.storage.s3.connection import Connection, link_client
from deltahub.registry.storage.s3.errors import REQUEST_ERRORS

# The longest that S3 lets a link live.
MOST_LIFETIME_S = 7 * 86_400


class Links:
    """Signs links on the endpoint that clients reach. Nothing is sent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._client: Any = None

    def link(self, key: str, start: int, end: int, lifetime_s: int) -> str:
        """A URL for GET with the header `Range: bytes=START-(END-1)`, and with no other range.

        The signature covers that header. The link ends after lifetime_s, or with the credentials.
        """
        if not (0 <= start < end and 1 <= lifetime_s <= MOST_LIFETIME_S):
            raise ValueError(f"no link for bytes {start}..{end} and {lifetime_s} s")
        connection = self._connection
        with self._lock:
            if self._client is None:
                self._client = link_client(connection)
        params = {
            "Bucket": connection.location.bucket,
            "Key": connection.key(key),
            "Range": f"bytes={start}-{end - 1}",
        }
        try:
            return str(
                self._client.generate_presigned_url(
                    "get_object", Params=params, ExpiresIn=lifetime_s
                )
            )
        except REQUEST_ERRORS as exc:
            raise connection.error(key, exc) from exc

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

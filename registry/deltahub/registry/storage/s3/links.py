"""Links to a range of an object, which a client follows without credentials until they expire."""

import threading
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import StoreUnavailable
from deltahub.registry.storage.s3.connection import Connection


class Links:
    """Signs links on the endpoint that clients reach. Nothing is sent."""

    def __init__(self, connection: Connection, settings: Settings) -> None:
        self._connection = connection
        self._settings = settings
        self._lock = threading.Lock()
        self._client: Any = None

    def link(self, key: str, start: int, end: int, lifetime_s: int) -> str:
        """A URL for GET with the header `Range: bytes=START-(END-1)`, and with no other range.

        The signature covers that header. The link ends after lifetime_s, or with the credentials.
        """
        location = self._connection.location
        with self._lock:
            if self._client is None:
                self._client = self._made()
        params = {
            "Bucket": location.bucket,
            "Key": self._connection.key(key),
            "Range": f"bytes={start}-{end - 1}",
        }
        try:
            return str(
                self._client.generate_presigned_url(
                    "get_object", Params=params, ExpiresIn=lifetime_s
                )
            )
        except (BotoCoreError, ClientError) as exc:
            raise StoreUnavailable(f"no link to {key} in {location.bucket}: {exc}") from exc

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _made(self) -> Any:
        settings, location = self._settings, self._connection.location
        endpoint = settings.s3_link_endpoint or location.endpoint or settings.s3_endpoint
        is_path_style = settings.s3_path_style
        if is_path_style is None:
            is_path_style = endpoint is not None
        return boto3.Session(profile_name=location.profile or None).client(
            "s3",
            endpoint_url=endpoint,
            region_name=location.region
            or settings.s3_region
            or ("us-east-1" if endpoint else None),
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": "path" if is_path_style else "virtual"},
            ),
        )

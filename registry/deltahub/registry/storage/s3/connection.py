"""A connection to a bucket: the boto3 client, and its errors as errors of the store."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import ObjectNotFound, StoreError, StoreUnavailable
from deltahub.registry.store_url import S3Location

_GONE: Final = frozenset({"NoSuchKey", "404", "NotFound"})


@dataclass(frozen=True)
class Connection:
    """A client of one bucket. `client` is boto3's, safe to share between threads.

    put_options, get_options: arguments of each request that writes or reads.
    """

    location: S3Location
    client: Any
    put_options: dict[str, str]
    get_options: dict[str, str]

    def key(self, key: str) -> str:
        """The key in the bucket."""
        return self.location.prefix + key

    @contextmanager
    def errors(self, key: str) -> Iterator[None]:
        """A context in which errors of boto3 are raised as StoreError, with key and bucket."""
        try:
            yield
        except (ClientError, BotoCoreError, HTTPClientError) as exc:
            raise self._translation(key, exc) from exc

    def _translation(self, key: str, exc: Exception) -> StoreError:
        if isinstance(exc, ClientError):
            error = exc.response.get("Error", {})
            if error.get("Code") in _GONE:
                return ObjectNotFound(f"there is no object {key}")
            reason = f"{error.get('Code')}: {error.get('Message')}"
        else:
            reason = str(exc)
        return StoreUnavailable(f"{key} in bucket {self.location.bucket}: {reason}")


def connect(location: S3Location, settings: Settings) -> Connection:
    """A connection by these settings; nothing is sent yet. StoreUnavailable without a region."""
    endpoint = location.endpoint or settings.s3_endpoint
    is_path_style = settings.s3_path_style
    if is_path_style is None:
        is_path_style = endpoint is not None
    config = Config(
        # Links to a custom endpoint would be signed by version 2 otherwise.
        signature_version="s3v4",
        s3={"addressing_style": "path" if is_path_style else "virtual"},
        retries={"mode": "standard", "total_max_attempts": 5},
        max_pool_connections=settings.s3_connections,
        connect_timeout=settings.s3_timeout_s,
        read_timeout=settings.s3_timeout_s,
        request_checksum_calculation="when_supported",
        # Ranges have no checksum: readers compare those of the blocks.
        response_checksum_validation="when_required",
    )
    try:
        session = boto3.Session(profile_name=location.profile or None)
        client = session.client(
            "s3",
            endpoint_url=endpoint,
            region_name=location.region
            or settings.s3_region
            or ("us-east-1" if endpoint else None),
            verify=None if settings.s3_ca is None else str(settings.s3_ca),
            config=config,
        )
    except (BotoCoreError, ValueError, OSError) as exc:
        raise StoreUnavailable(f"no connection to {location}: {exc}") from exc
    owner = {"ExpectedBucketOwner": settings.s3_bucket_owner} if settings.s3_bucket_owner else {}
    encryption: dict[str, str] = {}
    if settings.s3_encryption:
        encryption["ServerSideEncryption"] = settings.s3_encryption
    if settings.s3_kms_key:
        encryption["SSEKMSKeyId"] = settings.s3_kms_key
    return Connection(location, client, {**owner, **encryption}, owner)

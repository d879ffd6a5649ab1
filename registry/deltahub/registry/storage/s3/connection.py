"""A connection to a bucket: the boto3 client, its requests with retries, its errors as our own."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from deltahub.registry.settings import Settings
from deltahub.registry.storage.s3.errors import REQUEST_ERRORS, BucketUnavailable, translation
from deltahub.registry.storage.s3.retry import retried
from deltahub.registry.store_url import S3Location


@dataclass
class Connection:
    """A client of one bucket. `client` is boto3's, safe to share between threads.

    owner: the argument of every request that names the account which must own the bucket.
    encryption: the arguments of each request that begins an object.
    certificates: True for the usual ones, else the path of a file.
    sends_md5: the service gives no checksums back, so each body goes with its Content-MD5.
    """

    location: S3Location
    settings: Settings
    endpoint: str | None
    session: Any
    client: Any
    owner: dict[str, str]
    encryption: dict[str, str]
    certificates: bool | str
    sends_md5: bool = field(default=False)

    def key(self, key: str) -> str:
        """The key in the bucket."""
        return self.location.prefix + key

    def call(self, key: str, operation: str, **given: Any) -> Any:
        """The answer to a request of the client; StoreError. Transient errors are repeated."""
        try:
            return self.request(operation, **given)
        except REQUEST_ERRORS as exc:
            raise self.error(key, exc) from exc

    def request(self, operation: str, **given: Any) -> Any:
        """As call(), but the errors are those of boto3."""
        method = getattr(self.client, operation)
        once = partial(method, Bucket=self.location.bucket, **self.owner, **given)
        return retried(once, self.settings.s3_retry_s)

    def error(self, key: str, exc: Exception) -> Exception:
        return translation(self.location, self.endpoint, key, exc)

    def close(self) -> None:
        self.client.close()


def connect(location: S3Location, settings: Settings) -> Connection:
    """A connection by these settings; nothing is sent yet. StoreUnavailable without a region."""
    endpoint = location.endpoint or settings.s3_endpoint or None
    session, client = _client(location, settings, endpoint)
    owner = {"ExpectedBucketOwner": settings.s3_bucket_owner} if settings.s3_bucket_owner else {}
    encryption: dict[str, str] = {}
    if settings.s3_encryption:
        encryption["ServerSideEncryption"] = settings.s3_encryption
    if settings.s3_kms_key:
        encryption["SSEKMSKeyId"] = settings.s3_kms_key
    certificates = str(settings.s3_ca) if settings.s3_ca else _certificates(location)
    return Connection(
        location, settings, endpoint, session, client, owner, encryption, certificates
    )


def link_client(connection: Connection) -> Any:
    """A client that signs links on the endpoint that clients of the hub reach."""
    settings = connection.settings
    endpoint = settings.s3_link_endpoint or connection.endpoint
    return _client(connection.location, settings, endpoint)[1]


def _client(location: S3Location, settings: Settings, endpoint: str | None) -> tuple[Any, Any]:
    is_path_style = settings.s3_path_style
    if is_path_style is None:
        is_path_style = endpoint is not None
    config = Config(
        # Links to a custom endpoint would be signed by version 2 otherwise.
        signature_version="s3v4",
        s3={
            "addressing_style": "path" if is_path_style else "virtual",
            # Each body has a signed CRC32 or MD5. A SHA-256 as well costs more than the rest of
            # the request: 1.3 s of a processor for 1 GB.
            "payload_signing_enabled": False,
        },
        # retry.py repeats requests, because botocore has no bound in time.
        retries={"mode": "standard", "total_max_attempts": 1},
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
            or ("us-east-1" if endpoint and not session.region_name else None),
            verify=None if settings.s3_ca is None else str(settings.s3_ca),
            config=config,
        )
    except (BotoCoreError, ValueError, OSError) as exc:
        raise BucketUnavailable(f"no connection to {location}: {exc}") from exc
    return session, client


def _certificates(location: S3Location) -> bool | str:
    """The certificates that boto3 finds in its own configuration."""
    configured = botocore.session.Session(profile=location.profile or None)
    return configured.get_config_variable("ca_bundle") or True

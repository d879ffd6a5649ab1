"""Errors of boto3 as errors of the store: which pass by themselves, and the way out of the others.

A message names the key, the bucket and the service. It never holds credentials.
"""

import http.client
import re
from typing import Any, Final

import botocore.exceptions
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
)
from urllib3.exceptions import HTTPError

from deltahub.registry.storage.base import PartsLost, StoreError, StoreFull, StoreUnavailable
from deltahub.registry.store_url import S3Location

# What a request may raise: the client's errors, and those of reading an answer's body.
REQUEST_ERRORS: Final = (
    ClientError, BotoCoreError, HTTPClientError, HTTPError, http.client.HTTPException, OSError,
)  # fmt: skip

_ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound"})
TRANSIENT_STATUS: Final = frozenset({429, 500, 502, 503, 504})
_TRANSIENT: Final = frozenset({
    "SlowDown", "RequestTimeout", "RequestTimeoutException", "Throttling", "ThrottlingException",
    "RequestThrottled", "TooManyRequests", "InternalError", "ServiceUnavailable",
    # Two writers of one key at once.
    "OperationAborted", "ConditionalRequestConflict",
    # The body came to the service damaged or cut short, and it stored nothing.
    "BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch", "IncompleteBody",
})  # fmt: skip
# The upload in parts has ended, or a part is not the one that was named.
_LOST: Final = frozenset({"NoSuchUpload", "InvalidPart", "InvalidPartOrder"})
_FULL: Final = frozenset({
    "QuotaExceeded", "ServiceQuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded",
    "InsufficientCapacity", "InsufficientStorage", "StorageFull",
})  # fmt: skip
_CREDENTIALS: Final = frozenset({
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken",
    "TokenRefreshRequired", "InvalidClientTokenId", "UnrecognizedClientException",
    "MissingSecurityHeader", "InvalidSecurity", "NotSignedUp",
})  # fmt: skip
_REGION: Final = frozenset({
    "PermanentRedirect", "TemporaryRedirect", "Redirect", "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException", "301", "307",
})  # fmt: skip
_DENIED: Final = frozenset({"AccessDenied", "403", "Forbidden", "AllAccessDisabled"})
_CLOCK: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})


# No answer came, or not the whole of it.
_UNREACHED: Final = (
    botocore.exceptions.ConnectionError, HTTPClientError, HTTPError, http.client.HTTPException,
    OSError,
)  # fmt: skip


class BucketFull(StoreFull):
    place = "bucket"


class BucketUnavailable(StoreUnavailable):
    place = "bucket"


class BucketPartsLost(PartsLost):
    place = "bucket"


class IncompleteAnswer(HTTPError):
    """The body of an answer ended before its length, or its checksum is not the sent one."""


def code_of(exc: Exception) -> str:
    """The error code of the service's answer; "" for an error without an answer."""
    return str(_error(exc).get("Code", ""))


def is_absent(exc: Exception) -> bool:
    """Whether the service says that there is no such key; HEAD says so of a missing bucket, too."""
    return code_of(exc) in _ABSENT


def is_transient(exc: Exception) -> bool:
    """Whether the same request may succeed in a moment."""
    if isinstance(exc, ClientError):
        if code_of(exc) in _FULL:
            return False
        return code_of(exc) in _TRANSIENT or _status(exc) in TRANSIENT_STATUS
    if isinstance(exc, SSLError):
        return False
    return isinstance(exc, _UNREACHED)


def translation(location: S3Location, endpoint: str | None, key: str, exc: Exception) -> StoreError:
    """The error of the store for an error of a request about this key."""
    where = f"bucket {location.bucket} at {_without_user(endpoint) if endpoint else 'AWS'}"
    if code_of(exc) in _FULL or _status(exc) == 507:
        text = f"{key}: {where} has no room ({_reason(exc)}): raise its quota, or add disks"
        return BucketFull(text)
    if code_of(exc) in _LOST:
        return BucketPartsLost(f"{key} in {where}: {_reason(exc)}")
    hint = "" if endpoint else _other_service(exc)
    return BucketUnavailable(f"{key} in {where}: {_reason(exc)}{_way_out(exc, endpoint)}{hint}")


def _other_service(exc: Exception) -> str:
    """What to do if the request went to AWS only because nobody named the service."""
    code = code_of(exc)
    if code and code not in {"NoSuchBucket", *_CREDENTIALS, *_DENIED, *_REGION}:
        return ""
    return (
        "; if the bucket is not at AWS, name its service with DELTAHUB_S3_ENDPOINT, or in the URL"
        " with ?endpoint="
    )


def _way_out(exc: Exception, endpoint: str | None) -> str:
    code = code_of(exc)
    if isinstance(exc, NoCredentialsError | PartialCredentialsError):
        return ": set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile"
    if code in _CREDENTIALS or isinstance(exc, CredentialRetrievalError):
        return ": the service refuses the credentials; check AWS_ACCESS_KEY_ID and its secret"
    if code == "NoSuchBucket":
        return ": create the bucket, or name another one"
    if code in _REGION or _status(exc) in (301, 307):
        return ": the bucket is in another region; set DELTAHUB_S3_REGION"
    if code in _CLOCK:
        return ": set this machine's clock"
    if "kms" in code.lower() or (code in _DENIED and "kms" in _reason(exc).lower()):
        return ": check DELTAHUB_S3_KMS_KEY, and that the credentials may use this key"
    if code in _DENIED or _status(exc) == 403:
        return (
            ": the credentials must be allowed to get, put, delete and list objects and multipart"
            " uploads there, and DELTAHUB_S3_BUCKET_OWNER, if set, must be the bucket's owner"
        )
    if isinstance(exc, SSLError):
        return ": name the file of the service's certificates with DELTAHUB_S3_CA"
    if is_transient(exc) and not code:
        its_address = ", and DELTAHUB_S3_ENDPOINT its address" if endpoint else ""
        return f": is the service running{its_address}?"
    return ""


def _reason(exc: Exception) -> str:
    error = _error(exc)
    if not error:
        return _without_user(str(exc) or type(exc).__name__)
    message = error.get("Message")
    return _without_user(f"{error.get('Code')}: {message}" if message else str(error.get("Code")))


def _error(exc: Exception) -> dict[str, Any]:
    return exc.response.get("Error", {}) if isinstance(exc, ClientError) else {}


def _status(exc: Exception) -> int:
    if not isinstance(exc, ClientError):
        return 0
    return int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _without_user(text: str) -> str:
    """The text without the user name and password of a URL."""
    return re.sub(r"//[^/@\s]*@", "//***@", text)

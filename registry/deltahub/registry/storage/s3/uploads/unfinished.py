"""Uploads in parts that nobody finished: a bucket keeps their parts, and bills them, for good."""

from collections.abc import Iterator
from typing import Any

from deltahub.registry.storage.base import Unfinished
from deltahub.registry.storage.keys import is_key
from deltahub.registry.storage.s3.connection import Connection
from deltahub.registry.storage.s3.errors import REQUEST_ERRORS, code_of

# What services say of an upload that ended meanwhile.
_ENDED = "NoSuchUpload"
# And of a list that they do not have, because they keep no parts.
_NO_LIST = frozenset({"NotImplemented", "MethodNotAllowed", "501", "405"})


def unfinished_uploads(connection: Connection) -> Iterator[Unfinished]:
    """The uploads below the store's prefix that have begun and are not objects yet."""
    location = connection.location
    marker: dict[str, str] = {}
    while True:
        try:
            page = connection.request("list_multipart_uploads", Prefix=location.prefix, **marker)
        except REQUEST_ERRORS as exc:
            if code_of(exc) in _NO_LIST:
                return
            raise connection.error("the list of uploads", exc) from exc
        for upload in page.get("Uploads", ()):
            key = upload["Key"].removeprefix(location.prefix)
            if is_key(key):
                found = _measured(connection, key, upload)
                if found is not None:
                    yield found
        following = {
            "KeyMarker": page.get("NextKeyMarker", ""),
            "UploadIdMarker": page.get("NextUploadIdMarker", ""),
        }
        if not page.get("IsTruncated") or following == marker:
            return
        marker = following


def abort(connection: Connection, unfinished: Unfinished) -> None:
    """End an upload and delete its parts. It is no error if it has ended."""
    try:
        connection.request(
            "abort_multipart_upload",
            Key=connection.key(unfinished.key),
            UploadId=unfinished.id,
        )
    except REQUEST_ERRORS as exc:
        if code_of(exc) != _ENDED:
            raise connection.error(unfinished.key, exc) from exc


def still_unfinished(connection: Connection, unfinished: Unfinished) -> Unfinished | None:
    """The upload as it is now; None if it has ended."""
    upload = {
        "Key": connection.key(unfinished.key),
        "UploadId": unfinished.id,
        "Initiated": unfinished.modified_at,
    }
    return _measured(connection, unfinished.key, upload)


def _measured(connection: Connection, key: str, upload: dict[str, Any]) -> Unfinished | None:
    """An upload with the bytes of its parts, and the time of the last of them."""
    size, modified_at, marker = 0, upload["Initiated"], 0
    while True:
        try:
            page = connection.request(
                "list_parts",
                Key=upload["Key"],
                UploadId=upload["UploadId"],
                **({"PartNumberMarker": marker} if marker else {}),
            )
        except REQUEST_ERRORS as exc:
            if code_of(exc) == _ENDED:
                return None
            raise connection.error(key, exc) from exc
        for part in page.get("Parts", ()):
            size += part["Size"]
            modified_at = max(modified_at, part["LastModified"])
        following = int(page.get("NextPartNumberMarker") or 0)
        if not page.get("IsTruncated") or following <= marker:
            return Unfinished(upload["UploadId"], key, size, modified_at)
        marker = following

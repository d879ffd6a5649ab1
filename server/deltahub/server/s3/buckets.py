"""Buckets and lists of their objects."""

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.catalog.objects.keys import find_bucket, list_buckets
from deltahub.registry.catalog.objects.lists import (
    Asked,
    ObjectPage,
    after_folder,
    after_key,
    list_objects,
)
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.s3.refusals import S3Refusal
from deltahub.server.s3.xml import Content, date_text, document
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute)

# What this door says of itself; clients may name any other region.
REGION: Final = "us-east-1"
_MOST_KEYS: Final = 1000
_MOST_BUCKETS: Final = 10_000
# A namespace without a model has no date of its own.
_NO_DATE: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Parts of S3's API that are chosen by the name of a parameter, and that a hub has nothing for.
_ABSENT: Final = frozenset(
    {
        "accelerate", "acl", "analytics", "attributes", "cors", "encryption", "intelligent-tiering",
        "inventory", "legal-hold", "lifecycle", "logging", "metadataTable", "metrics",
        "notification", "object-lock", "ownershipControls", "policy", "policyStatus",
        "publicAccessBlock", "replication", "requestPayment", "retention", "session", "tagging",
        "torrent", "uploadId", "uploads", "versions", "website",
    }
)  # fmt: skip


def refuse_absent(request: Request) -> None:
    """Raise S3Refusal for a part of S3's API that this door lacks."""
    for name in request.query_params:
        if name in _ABSENT or name.startswith("response-"):
            raise S3Refusal(
                "NotImplemented",
                f"S3 has no {name[:40]!r} here: this hub lists buckets and objects, and reads them",
            )


@router.get("/")
def get_buckets(request: Request, hub: HubDep, caller: CallerDep) -> Response:
    """List the namespaces whose models the caller may read."""
    asked = request.query_params
    limit = _number(asked, "max-buckets", _MOST_BUCKETS)
    after = _key_of(asked["continuation-token"]) if "continuation-token" in asked else ""
    prefix = asked.get("prefix", "")
    if "\0" in prefix + after:
        raise S3Refusal("InvalidArgument", "no bucket has a NUL in its name")
    with hub.registry.db.read() as session:
        found = list_buckets(session, caller, prefix, after, limit + 1)
    shown = found[:limit]
    content: list[tuple[str, Content]] = [
        ("Owner", [("ID", "deltahub" if caller is None else caller.name)]),
        (
            "Buckets",
            [
                (
                    "Bucket",
                    [
                        ("Name", each.name),
                        ("CreationDate", date_text(each.created_at or _NO_DATE)),
                        ("BucketRegion", REGION),
                    ],
                )
                for each in shown
            ],
        ),
    ]
    if len(found) > limit and shown:
        content.append(("ContinuationToken", _token(shown[-1].name)))
    return document("ListAllMyBucketsResult", content)


@router.head("/{bucket}")
def head_bucket(bucket: str, hub: HubDep, caller: CallerDep) -> Response:
    """Say whether there is a bucket."""
    with hub.registry.db.read() as session:
        find_bucket(session, caller, bucket)
    return Response(headers={"x-amz-bucket-region": REGION})


@router.get("/{bucket}")
@reads(is_long=True)
def get_bucket(bucket: str, request: Request, hub: HubDep, caller: CallerDep) -> Response:
    """List objects, by version 1 or 2 of that call, or say where the bucket is."""
    refuse_absent(request)
    asked = request.query_params
    if "location" in asked or "versioning" in asked:
        with hub.registry.db.read() as session:
            find_bucket(session, caller, bucket)
        # In S3, an empty text is the region us-east-1, and no state: never versioned.
        return document(
            "LocationConstraint" if "location" in asked else "VersioningConfiguration", ""
        )
    version = asked.get("list-type", "1")
    if version not in ("1", "2"):
        raise S3Refusal("InvalidArgument", "list-type is 2, or is left out for version 1")
    is_second = version == "2"
    limit = _number(asked, "max-keys", _MOST_KEYS)
    delimiter = asked.get("delimiter", "")
    if delimiter not in ("", "/"):
        raise S3Refusal("NotImplemented", "this hub groups keys by the delimiter / alone")
    encoding = asked.get("encoding-type", "")
    if encoding not in ("", "url"):
        raise S3Refusal("InvalidArgument", "encoding-type is url, or is left out")
    prefix = asked.get("prefix", "")
    first = _first(asked, prefix, delimiter, is_second=is_second)
    page = ObjectPage()
    with hub.registry.db.read() as session:
        if limit:
            wanted = Asked(prefix, first, limit, in_folders=delimiter == "/")
            page = list_objects(session, caller, bucket, wanted)
        else:
            find_bucket(session, caller, bucket)
    return document("ListBucketResult", _shown(bucket, asked, limit, page, is_second=is_second))


def _first(asked: Mapping[str, str], prefix: str, delimiter: str, *, is_second: bool) -> str:
    """Return the least key that may be listed."""
    if is_second and "continuation-token" in asked:
        return _key_of(asked["continuation-token"])
    after = asked.get("start-after" if is_second else "marker", "")
    if not after:
        return ""
    # Of version 1, the marker of the next page may be a folder that was listed.
    is_folder = not is_second and delimiter and after.endswith(delimiter) and after != delimiter
    return after_folder(after) if is_folder and after.startswith(prefix) else after_key(after)


def _shown(
    bucket: str, asked: Mapping[str, str], limit: int, page: ObjectPage, *, is_second: bool
) -> list[tuple[str, Content]]:
    """The content of a list, in the order of S3's documents."""
    is_url = asked.get("encoding-type") == "url"

    def text(value: str) -> str:
        return quote(value, safe="/-_.~") if is_url else value

    is_cut = page.next_first is not None
    found: list[tuple[str, Content]] = [
        ("Name", bucket),
        ("Prefix", text(asked.get("prefix", ""))),
        ("MaxKeys", str(limit)),
        ("IsTruncated", "true" if is_cut else "false"),
    ]
    optional = {"EncodingType": "url" if is_url else "", "Delimiter": asked.get("delimiter", "")}
    if is_second:
        found.append(("KeyCount", str(page.n_items)))
        optional |= {
            "ContinuationToken": asked.get("continuation-token", ""),
            "StartAfter": text(asked.get("start-after", "")),
            "NextContinuationToken": _token(page.next_first or "") if is_cut else "",
        }
    else:
        found.append(("Marker", text(asked.get("marker", ""))))
        last = max([*page.folders[-1:], *(each.key for each in page.objects[-1:])], default="")
        # A page may have nothing but say where the next one begins.
        optional["NextMarker"] = text(last or page.next_first or "") if is_cut else ""
    found += [(name, value) for name, value in optional.items() if value]
    found += [
        (
            "Contents",
            [
                ("Key", text(each.key)),
                ("LastModified", date_text(each.changed_at)),
                ("ETag", f'"{each.etag}"'),
                ("Size", str(each.size)),
                ("StorageClass", "STANDARD"),
            ],
        )
        for each in page.objects
    ]
    found += [("CommonPrefixes", [("Prefix", text(each))]) for each in page.folders]
    return found


def _number(asked: Mapping[str, str], name: str, most: int) -> int:
    sent = asked.get(name, str(most))
    if not re.fullmatch(r"[0-9]{1,10}", sent, re.ASCII):
        raise S3Refusal("InvalidArgument", f"{name} is a number from 0 to {most}")
    return min(int(sent), most)


def _token(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _key_of(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError as error:  # of base64 and of UTF-8
        raise S3Refusal(
            "InvalidArgument", "the continuation token is wrong: take it from the page before"
        ) from error

"""Signatures of requests by AWS's Signature Version 4, in a header or in the query of a link.

Source: AWS, "Authenticating Requests (AWS Signature Version 4)", in the API reference of S3: task 1
to 3, and the pages on query parameters. Pure: no database, no clock, no HTTP library.
"""

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from deltahub.server.s3.refusals import S3Refusal

ALGORITHM: Final = "AWS4-HMAC-SHA256"
UNSIGNED: Final = "UNSIGNED-PAYLOAD"
EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
# How far the clocks of a client and of the hub may be apart, and how long a link may work: S3's.
SKEW: Final = timedelta(minutes=15)
MAX_LINK_S: Final = 7 * 86400
# As many as the headers that a request may have.
_MOST_NAMES: Final = 128
_SIGNATURE: Final = "X-Amz-Signature"
_DATE: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z", re.ASCII)
_FIELD: Final = re.compile(r"(Credential|SignedHeaders|Signature)=([^,\s]+)")
_UNRESERVED: Final = "-_.~"
_HOW: Final = (
    "sign requests by Signature Version 4 (in boto3: Config(signature_version='s3v4')), with the"
    " keys that `deltahub token s3` prints, or send them unsigned to read public models"
)


@dataclass(frozen=True)
class Request:
    """What is signed of a request. path, query: as they were sent. headers: names in lower case."""

    method: str
    path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    def header(self, name: str) -> str | None:
        """The value of a header, as it is signed; None without it."""
        values = [_trimmed(value) for key, value in self.headers if key == name.encode("latin-1")]
        return ",".join(values) if values else None


@dataclass(frozen=True)
class Signed:
    """What a request says of its signature. expires_s: lifetime of a link; None for a header.

    scope: `date/region/s3/aws4_request`. payload: what was signed in place of the body.
    """

    access_key_id: str
    scope: str
    signed_headers: tuple[str, ...]
    signature: str
    date: str
    payload: str
    expires_s: int | None = None

    def check_time(self, now: datetime) -> None:
        """S3Refusal if the request is too old, or from the future."""
        at = datetime.strptime(self.date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        age = now - at
        shown = f"signed at {at:%F %T} UTC, and here it is {now:%F %T} UTC"
        if self.expires_s is None:
            if abs(age) > SKEW:
                raise S3Refusal(
                    "RequestTimeTooSkewed",
                    f"the request was {shown}: the clocks may be {SKEW.seconds // 60} min apart",
                )
        elif age < -SKEW:
            raise S3Refusal("AccessDenied", f"this link is not good yet: it was {shown}")
        elif age > timedelta(seconds=self.expires_s):
            raise S3Refusal(
                "AccessDenied", f"this link was good for {self.expires_s} s: it was {shown}"
            )

    def is_by(self, secret: str, request: Request) -> bool:
        """Whether the holder of this secret signed the request."""
        key = f"AWS4{secret}".encode()
        for part in self.scope.split("/"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return any(
            hmac.compare_digest(
                hmac.new(key, self._text(canonical), hashlib.sha256).hexdigest().encode(),
                self.signature.encode(),
            )
            for canonical in self._canonical(request)
        )

    def _text(self, canonical: str) -> bytes:
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        return "\n".join([ALGORITHM, self.date, self.scope, digest]).encode()

    def _canonical(self, request: Request) -> Iterator[str]:
        """The canonical request, as it should be and, if it differs, with what was sent.

        Clients should sign a path and a query with every byte escaped that is not unreserved. Some
        send them otherwise than they sign them, and some sign what they send.
        """
        headers = [f"{name}:{request.header(name) or ''}" for name in self.signed_headers]
        found = ""
        for path, query in (
            (_escaped(request.path, "/"), _canonical_query(request.query, is_escaped=True)),
            (request.path.decode("latin-1"), _canonical_query(request.query, is_escaped=False)),
        ):
            names = ";".join(self.signed_headers)
            parts = [request.method, path, query, *headers, "", names, self.payload]
            if "\n".join(parts) != found:
                found = "\n".join(parts)
                yield found


def signed_by(request: Request, query: Mapping[str, str]) -> Signed | None:
    """What a request says of its signature; None for an unsigned one. query: decoded.

    S3Refusal for a signature of another kind, or one that says too little.
    """
    header = request.header("authorization")
    if _SIGNATURE in query or "X-Amz-Algorithm" in query:
        if header is not None:
            raise S3Refusal("InvalidArgument", "a request is signed in its header or in its query")
        return _of_query(request, query)
    if "Signature" in query and "AWSAccessKeyId" in query:
        raise S3Refusal("InvalidRequest", f"signatures of version 2 are not taken: {_HOW}")
    return None if header is None else _of_header(request, header)


def _of_header(request: Request, header: str) -> Signed:
    scheme, _, rest = header.partition(" ")
    if scheme != ALGORITHM:
        raise S3Refusal(
            "InvalidRequest", f"S3 clients do not authenticate by {scheme[:40]}: {_HOW}"
        )
    fields = dict(_FIELD.findall(rest))
    if len(fields) < 3:
        raise S3Refusal(
            "AuthorizationHeaderMalformed",
            "the Authorization header needs Credential, SignedHeaders and Signature",
        )
    payload = request.header("x-amz-content-sha256")
    if payload is None:
        raise S3Refusal("InvalidRequest", "a signed request needs the header x-amz-content-sha256")
    date = request.header("x-amz-date") or ""
    key_id, scope = _credential(fields["Credential"], date, "AuthorizationHeaderMalformed")
    names = _names(fields["SignedHeaders"], ("host", "x-amz-date"))
    return Signed(key_id, scope, names, fields["Signature"], date, payload)


def _of_query(request: Request, query: Mapping[str, str]) -> Signed:
    code = "AuthorizationQueryParametersError"
    if query.get("X-Amz-Algorithm") != ALGORITHM:
        raise S3Refusal(code, f"X-Amz-Algorithm of a link must be {ALGORITHM}")
    wanted = ("X-Amz-Credential", "X-Amz-Date", "X-Amz-SignedHeaders", "X-Amz-Expires", _SIGNATURE)
    missing = [name for name in wanted if not query.get(name)]
    if missing:
        raise S3Refusal(code, f"a signed link needs {', '.join(missing)}, too")
    expires = query["X-Amz-Expires"]
    if not re.fullmatch(r"[0-9]{1,9}", expires) or not 1 <= int(expires) <= MAX_LINK_S:
        raise S3Refusal(code, f"a link works for 1 to {MAX_LINK_S} s (X-Amz-Expires)")
    date = query["X-Amz-Date"]
    key_id, scope = _credential(query["X-Amz-Credential"], date, code)
    payload = request.header("x-amz-content-sha256")
    return Signed(
        key_id, scope, _names(query["X-Amz-SignedHeaders"], ("host",)), query[_SIGNATURE], date,
        payload or query.get("X-Amz-Content-Sha256") or UNSIGNED, int(expires),
    )  # fmt: skip


def _credential(credential: str, date: str, code: str) -> tuple[str, str]:
    """(access key id, scope). code: of the refusal."""
    if not _DATE.fullmatch(date) or not _is_date(date):
        raise S3Refusal("AccessDenied", "a signed request needs X-Amz-Date, as 20261128T120000Z")
    key_id, _, scope = credential.partition("/")
    parts = scope.split("/")
    if len(parts) != 4 or parts[2:] != ["s3", "aws4_request"] or parts[0] != date[:8]:
        raise S3Refusal(
            code, "a credential is KEY/DATE/REGION/s3/aws4_request, with the date of X-Amz-Date"
        )
    return key_id, scope


def _is_date(date: str) -> bool:
    try:
        datetime.strptime(date, "%Y%m%dT%H%M%SZ")
    except ValueError:
        return False
    return True


def _names(names: str, needed: tuple[str, ...]) -> tuple[str, ...]:
    found = tuple(names.lower().split(";"))
    if len(found) > _MOST_NAMES:
        raise S3Refusal("InvalidRequest", f"a signature is over at most {_MOST_NAMES} headers")
    missing = [name for name in needed if name not in found]
    if missing:
        raise S3Refusal("AccessDenied", f"the signature must be over {', '.join(missing)}, too")
    return found


def _canonical_query(query: bytes, *, is_escaped: bool) -> str:
    """The parameters of a query but for the signature, sorted by name and value."""
    pairs: list[tuple[str, str]] = []
    for part in query.split(b"&") if query else []:
        name, _, value = part.partition(b"=")
        if unquote_to_bytes(name) == _SIGNATURE.encode():
            continue
        if is_escaped:
            pairs.append((_escaped(name), _escaped(value)))
        else:
            pairs.append((name.decode("latin-1"), value.decode("latin-1")))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _escaped(sent: bytes, safe: str = "") -> str:
    return quote(unquote_to_bytes(sent), safe=_UNRESERVED + safe)


def _trimmed(value: bytes) -> str:
    return b" ".join(value.split()).decode("latin-1")

"""Requests that botocore signs are verified, whatever their keys, parameters and headers."""

from datetime import UTC, datetime
from urllib.parse import quote, urlencode, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from deltahub.server.s3.refusals import S3Refusal
from deltahub.server.s3.signature import Request, Signed, signed_by

KEY = Credentials("DHS3KEY", "secret/with+odd=bytes")
HOST = "s3.hub.example.com:9000"
keys = st.text(
    st.one_of(
        st.sampled_from(list("/ +%&=?#~.-_*'()!$,:;@[]{}|\\^`\"<>éüñ日\U0001f600")),
        st.characters(codec="utf-8", exclude_categories=["Cs"]),
    ),
    max_size=30,
)
values = st.dictionaries(keys.filter(bool), keys, max_size=4)
headers = st.dictionaries(
    st.sampled_from(["range", "x-amz-meta-a", "if-match", "x-amz-checksum-mode", "accept"]),
    st.text(st.sampled_from(list('ab \t=,;"')), max_size=12),
    max_size=4,
)


def sent(request: AWSRequest) -> tuple[Request, Signed | None]:
    """A request as the hub gets it, and what it says of its signature."""
    parts = urlsplit(request.url)
    found = {name.lower(): value for name, value in request.headers.items()}
    found.setdefault("host", parts.netloc)
    query = parts.query.encode()
    made = Request(
        request.method, parts.path.encode(), query,
        tuple((name.encode(), value.encode()) for name, value in found.items()),
    )  # fmt: skip
    return made, signed_by(made, dict(QueryParams(query)))


def url_of(key: str, query: dict[str, str]) -> str:
    asked = f"?{urlencode(query, quote_via=quote, safe='-_.~')}" if query else ""
    return f"http://{HOST}/bucket/{quote(key, safe='/~')}{asked}"


def with_host(request: Request, host: bytes) -> tuple[tuple[bytes, bytes], ...]:
    others = [(name, value) for name, value in request.headers if name != b"host"]
    return ((b"host", host), *others)


@given(key=keys, query=values, more=headers, method=st.sampled_from(["GET", "HEAD"]))
def test_a_signed_header_is_verified(
    key: str, query: dict[str, str], more: dict[str, str], method: str
) -> None:
    request = AWSRequest(method, url_of(key, query), dict(more))
    S3SigV4Auth(KEY, "s3", "eu-west-1").add_auth(request)
    made, signed = sent(request)
    assert signed is not None
    assert signed.access_key_id == KEY.access_key
    assert signed.is_by(KEY.secret_key, made)
    assert not signed.is_by("another", made)


@given(key=keys, query=values, expires_s=st.integers(1, 604800))
def test_a_signed_link_is_verified(key: str, query: dict[str, str], expires_s: int) -> None:
    request = AWSRequest("GET", url_of(key, query))
    S3SigV4QueryAuth(KEY, "s3", "us-east-1", expires_s).add_auth(request)
    made, signed = sent(request)
    assert signed is not None
    assert signed.expires_s == expires_s
    assert signed.is_by(KEY.secret_key, made)
    assert not signed.is_by("another", made)


@given(key=keys.filter(lambda key: "%" not in key), other=keys)
def test_a_signature_is_of_one_request(key: str, other: str) -> None:
    request = AWSRequest("GET", url_of(key, {"a": "b"}))
    S3SigV4Auth(KEY, "s3", "eu-west-1").add_auth(request)
    made, signed = sent(request)
    assert signed is not None
    path = urlsplit(url_of(other, {})).path.encode()
    changed = [
        Request("HEAD", made.path, made.query, made.headers),
        Request(made.method, made.path, b"a=c", made.headers),
        Request(made.method, made.path, b"a=b&c", made.headers),
        Request(made.method, made.path, made.query, with_host(made, b"other.example.com")),
    ]
    if path != made.path:
        changed.append(Request(made.method, path, made.query, made.headers))
    assert [signed.is_by(KEY.secret_key, one) for one in changed] == [False] * len(changed)


def test_some_clients_sign_otherwise_than_they_send() -> None:
    for path in (b"/bucket/a%2fb", b"/bucket/(x)", b"/bucket/a=b", b"/bucket/%7Ea"):
        escaped = quote(path.decode().replace("%2f", "/").replace("%7E", "~"), safe="/~")
        request = AWSRequest("GET", f"http://{HOST}{escaped}")
        S3SigV4Auth(KEY, "s3", "eu-west-1").add_auth(request)
        made, signed = sent(request)
        assert signed is not None
        assert signed.is_by(KEY.secret_key, Request("GET", path, b"", made.headers))
        as_sent = AWSRequest("GET", f"http://{HOST}{path.decode()}")
        S3SigV4Auth(KEY, "s3", "eu-west-1").add_auth(as_sent)
        made, signed = sent(as_sent)
        assert signed is not None
        assert signed.is_by(KEY.secret_key, made)


@given(st.text(max_size=60), st.sampled_from(["", "AWS4-HMAC-SHA256 ", "AWS ", "Bearer "]))
def test_no_header_makes_an_error_of_ours(text: str, scheme: str) -> None:
    header = (scheme + text).encode("utf-8", "replace")
    made = Request("GET", b"/", b"", ((b"authorization", header),))
    with pytest.raises(S3Refusal):
        signed_by(made, {})


@given(
    st.dictionaries(
        st.sampled_from(
            ["X-Amz-Algorithm", "X-Amz-Signature", "X-Amz-Credential", "X-Amz-Date",
             "X-Amz-SignedHeaders", "X-Amz-Expires"]
        ),
        st.one_of(
            st.text(max_size=20),
            st.sampled_from(
                ["AWS4-HMAC-SHA256", "20261128T120000Z", "host", "60", "20261399T999999Z",
                 "K/20261128/r/s3/aws4_request", "0", "99999999999", "١٢"]
            ),
        ),
        min_size=1,
    )
)  # fmt: skip
def test_no_query_makes_an_error_of_ours(query: dict[str, str]) -> None:
    made = Request("GET", b"/", b"", ((b"host", b"h"),))
    try:
        signed = signed_by(made, query)
    except S3Refusal:
        return
    assert signed is None or not signed.is_by("x", made)


@pytest.mark.parametrize("date", ["00010101T000000Z", "99991231T235959Z"])
@pytest.mark.parametrize("expires_s", [None, 604800])
def test_the_ends_of_the_calendar_are_only_wrong(date: str, expires_s: int | None) -> None:
    signed = Signed("K", f"{date[:8]}/r/s3/aws4_request", ("host",), "0", date, "x", expires_s)
    with pytest.raises(S3Refusal, match="signed at"):
        signed.check_time(datetime.now(UTC))

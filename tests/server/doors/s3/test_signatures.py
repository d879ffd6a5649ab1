"""Whose request it is: keys that end with their token, times, links, and all that is refused."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from deltahub.client.tokens import S3Keys
from deltahub.registry.access import accounts, tokens
from support.s3.door import Door, code_of, sentence_of
from support.s3.world import FILES, World
from support.web.page_reader import Browser

PATH = "/ann/secret/a.txt"


def at(monkeypatch: pytest.MonkeyPatch, minutes: float) -> None:
    """Let botocore's clock go wrong."""
    now = datetime.now(UTC) + timedelta(minutes=minutes)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: now)


def token_id_of(world: World, label: str) -> int:
    return next(each.id for each in tokens.list_tokens(world.hub.registry) if each.label == label)


def test_the_keys_of_a_token_end_with_it(world: World) -> None:
    registry = world.hub.registry
    secret = tokens.create_token(registry, "ann", "read", "short")
    door = world.ann.by(world.hub, secret)
    assert door.call("GET", PATH).body == b"a"
    tokens.revoke_token(registry, token_id_of(world, "short"))
    refused = door.call("GET", PATH)
    assert code_of(refused) == (403, "InvalidAccessKeyId")
    assert "revoked" in sentence_of(refused)
    # SQLite gives the id again: the next token has other keys.
    again = world.ann.by(world.hub, tokens.create_token(registry, "ann", "read", "again"))
    assert again.keys != door.keys
    assert code_of(door.call("GET", PATH)) == (403, "InvalidAccessKeyId")
    assert again.call("GET", PATH).status == 200


def test_the_keys_of_an_expired_token_say_so(world: World) -> None:
    door = world.ann.by(world.hub, tokens.create_token(world.hub.registry, "ann", "read", "", 1))
    time.sleep(1.2)
    refused = door.call("GET", PATH)
    assert code_of(refused) == (400, "ExpiredToken")
    assert "expired at" in sentence_of(refused)
    assert door.keys is not None
    wrong = Door(door.url, S3Keys(door.keys.access_key_id, "wrong"))
    assert code_of(wrong.call("GET", PATH)) == (403, "SignatureDoesNotMatch")


def test_a_disabled_user_reads_nothing(world: World) -> None:
    door = world.ann.by(world.hub, world.hub.user("leaver"))
    assert door.call("GET", "/ann/tiny/config.json").status == 200
    accounts.disable(world.hub.registry, None, "leaver", by_shell=True)
    refused = door.call("GET", "/ann/tiny/config.json")
    assert code_of(refused) == (403, "AccessDenied")
    assert "disabled" in sentence_of(refused)


def test_a_token_opens_what_its_holder_may_read_and_no_more(world: World) -> None:
    hub = world.hub
    stranger = world.ann.by(hub, hub.user("stranger"))
    admin = world.ann.by(hub, hub.admin_token)
    only_reads = world.ann.by(hub, tokens.create_token(hub.registry, "admin", "read"))
    for door in (stranger, world.ann.guests):
        assert code_of(door.call("GET", PATH)) == (404, "NoSuchKey")
        assert code_of(door.call("GET", "/admin/alone/a.txt")) == (404, "NoSuchBucket")
        assert code_of(door.call("GET", "/admin", "list-type=2")) == (404, "NoSuchBucket")
        assert door.list("ann", prefix="secret/").keys == []
        assert "secret/" not in door.list("ann", delimiter="/").folders
        assert b"<Name>admin</Name>" not in door.call("GET", "/").body
        absent = door.call("GET", "/ann/nothing/a.txt")
        assert sentence_of(absent).replace("nothing", "secret") == sentence_of(
            door.call("GET", PATH)
        )
    assert admin.call("GET", PATH).body == b"a"
    # Of an administrator's tokens, those of scope admin alone read what is not theirs.
    assert code_of(only_reads.call("GET", PATH)) == (404, "NoSuchKey")
    assert only_reads.call("GET", "/admin/alone/a.txt").body == b"a"
    assert b"<Name>admin</Name>" in only_reads.call("GET", "/").body


def test_the_keys_are_those_of_the_token_that_asks(world: World) -> None:
    hub = world.hub
    assert hub.call("GET", "/v1/tokens/s3").status == 401
    answer = hub.call("GET", "/v1/tokens/s3", token=world.token).json()
    assert answer["endpoint_url"] == world.ann.url
    assert world.ann.keys is not None
    assert answer["secret_access_key"] == world.ann.keys.secret_access_key
    assert world.token not in str(answer)
    other = tokens.create_token(hub.registry, "ann", "read")
    assert world.ann.by(hub, other).keys != world.ann.keys


@pytest.mark.parametrize("minutes", [-14, 14])
def test_clocks_may_differ_a_little(
    world: World, monkeypatch: pytest.MonkeyPatch, minutes: float
) -> None:
    at(monkeypatch, minutes)
    assert world.ann.call("GET", PATH).status == 200


@pytest.mark.parametrize("minutes", [-16, 16, -60 * 24 * 365])
def test_clocks_may_not_differ_much(
    world: World, monkeypatch: pytest.MonkeyPatch, minutes: float
) -> None:
    at(monkeypatch, minutes)
    refused = world.ann.call("GET", PATH)
    assert code_of(refused) == (403, "RequestTimeTooSkewed")
    assert "15 min" in sentence_of(refused)


def test_a_link_works_until_its_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    door = world.ann
    path, query = door.link(PATH, expires_s=3600)
    assert door.send("GET", path, query).body == b"a"
    ranged = door.send("GET", path, query, headers={"Range": "bytes=0-0"})
    assert (ranged.status, ranged.body) == (206, b"a")
    for other in ("/ann/secret/b/c.txt", "/ann/tiny/config.json"):
        assert code_of(door.send("GET", other, query)) == (403, "SignatureDoesNotMatch")
    assert door.send("HEAD", path, query).status == 403  # it was signed for GET
    at(monkeypatch, -61)
    path, query = door.link(PATH, expires_s=3600)
    refused = door.send("GET", path, query)
    assert code_of(refused) == (403, "AccessDenied")
    assert "good for 3600 s" in sentence_of(refused)
    at(monkeypatch, 20)
    path, query = door.link(PATH, expires_s=3600)
    assert code_of(door.send("GET", path, query)) == (403, "AccessDenied")


@pytest.mark.parametrize("expires", ["0", "604801", "x", "-5", ""])
def test_a_link_works_for_a_week_at_most(world: World, expires: str) -> None:
    path, query = world.ann.link(PATH, expires_s=60)
    refused = world.ann.send("GET", path, query.replace("Expires=60", f"Expires={expires}"))
    assert code_of(refused) == (400, "AuthorizationQueryParametersError")


def test_a_link_ends_with_its_token(world: World) -> None:
    secret = tokens.create_token(world.hub.registry, "ann", "read", "of a link")
    door = world.ann.by(world.hub, secret)
    path, query = door.link(PATH)
    assert door.send("GET", path, query).status == 200
    tokens.revoke_token(world.hub.registry, token_id_of(world, "of a link"))
    assert code_of(door.send("GET", path, query)) == (403, "InvalidAccessKeyId")


def changed(header: str, **parts: str) -> dict[str, str]:
    for old, new in parts.items():
        header = header.replace(old, new)
    return {"Authorization": header}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda h: {"X-Amz-Date": "20200101T000000Z"}, (400, "AuthorizationHeaderMalformed")),
        (lambda h: {"X-Amz-Date": "yesterday"}, (403, "AccessDenied")),
        (lambda h: {"X-Amz-Date": "20261399T000000Z"}, (403, "AccessDenied")),
        (lambda h: {"X-Amz-Content-SHA256": "0" * 64}, (400, "XAmzContentSHA256Mismatch")),
        (lambda h: {"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}, (403, "SignatureDoesNotMatch")),
        (lambda h: {"Host": "localhost:1"}, (403, "SignatureDoesNotMatch")),
        (lambda h: changed(h, aws4_request="aws4"), (400, "AuthorizationHeaderMalformed")),
        (
            lambda h: changed(h, **{"/s3/": "/ec2/"}),
            (400, "AuthorizationHeaderMalformed"),
        ),
        (lambda h: changed(h, **{"eu-central-1": "eu-1"}), (403, "SignatureDoesNotMatch")),
        (lambda h: changed(h, **{"SignedHeaders=host;": "SignedHeaders="}), (403, "AccessDenied")),
        (lambda h: changed(h, **{"Signature=": "Signature=0"}), (403, "SignatureDoesNotMatch")),
        (lambda h: changed(h, **{"host;": "host;" + "a;" * 200}), (400, "InvalidRequest")),
        (lambda h: changed(h, DHS3="DHS4"), (403, "InvalidAccessKeyId")),
        (lambda h: {"Authorization": "AWS4-HMAC-SHA256 x"}, (400, "AuthorizationHeaderMalformed")),
        (lambda h: {"Authorization": "AWS KEY:signature"}, (400, "InvalidRequest")),
        (lambda h: {"Authorization": "Bearer hf_x"}, (400, "InvalidRequest")),
        (
            lambda h: {"Authorization": h.replace("HMAC", "ECDSA-P256")},
            (400, "InvalidRequest"),
        ),
    ],
)  # fmt: skip
def test_a_wrong_signature_is_refused(world: World, change: Any, expected: tuple[int, str]) -> None:
    headers = world.ann.signed("GET", PATH)
    assert world.ann.send("GET", PATH, headers=headers).status == 200
    headers |= change(headers["Authorization"])
    assert code_of(world.ann.send("GET", PATH, headers=headers)) == expected


def test_a_request_is_signed_in_one_place(world: World) -> None:
    headers = world.ann.signed("GET", PATH)
    path, query = world.ann.link(PATH)
    refused = world.ann.send("GET", path, query, headers=headers)
    assert code_of(refused) == (400, "InvalidArgument")
    old = "AWSAccessKeyId=x&Signature=y&Expires=1"
    refused = world.ann.guests.send("GET", PATH, old)
    assert code_of(refused) == (400, "InvalidRequest")
    assert "s3v4" in sentence_of(refused)
    without = {name: each for name, each in headers.items() if "SHA256" not in name}
    assert code_of(world.ann.send("GET", PATH, headers=without)) == (400, "InvalidRequest")


class UnsignedPayload(S3SigV4Auth):
    """Signs without the hash of the body, as clients may over TLS."""

    def payload(self, request: AWSRequest) -> str:
        return "UNSIGNED-PAYLOAD"


def test_the_payload_may_be_unsigned(world: World) -> None:
    keys = world.ann.keys
    assert keys is not None
    request = AWSRequest("GET", f"{world.ann.url}{PATH}")
    credentials = Credentials(keys.access_key_id, keys.secret_access_key)
    UnsignedPayload(credentials, "s3", "any-region").add_auth(request)
    answer = world.ann.send("GET", PATH, headers=dict(request.headers.items()))
    assert (answer.status, answer.body) == (200, b"a")


def test_a_read_has_no_body(world: World) -> None:
    refused = world.ann.call("GET", PATH, body=b"x")
    assert code_of(refused) == (400, "InvalidRequest")


def test_cookies_of_a_browser_open_nothing(world: World) -> None:
    cookie = Browser(world.hub, world.token).session
    assert world.hub.call("GET", "/ann/secret", headers={"Cookie": cookie}).status == 200
    refused = world.ann.guests.send("GET", PATH, headers={"Cookie": cookie})
    assert code_of(refused) == (404, "NoSuchKey")


def test_public_models_need_no_keys(world: World) -> None:
    answer = world.ann.guests.get("ann", "tiny/config.json")
    assert (answer.status, answer.body) == (200, FILES["config.json"])
    assert "tiny/" in world.ann.guests.list("ann", delimiter="/").folders

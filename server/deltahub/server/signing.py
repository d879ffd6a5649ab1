"""Signed links and tokens: claims, an expiry time, and an HMAC-SHA256 over both.

Clients follow such links without their access token. The claims say what the link allows and for
which access token it was made; when that token ends, the link ends too.
"""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from pydantic import SecretStr

from deltahub.registry import ReadSession
from deltahub.registry.access.caller import ANONYMOUS, Caller
from deltahub.registry.access.keys.signing_key import fingerprint, signing_key
from deltahub.registry.access.tokens import caller_of_mark
from deltahub.registry.errors import Unauthorized

Claims: TypeAlias = Mapping[str, str | int]

_TOKEN: Final = "token"
_NO_TOKEN: Final = ""
_CLOCK_SLACK_S: Final = 300


class Signer:
    """Signs and verifies tokens of one hub. A token is valid for the purpose it was signed for."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    @classmethod
    def of_folder(cls, data_dir: Path) -> "Signer":
        """Make a signer with the key of a data folder; writes a random key if there is none.

        Raises StoreError if the key cannot be read or written.
        """
        return cls(signing_key(data_dir, None))

    @classmethod
    def of(cls, data_dir: Path, secret: SecretStr | None) -> "Signer":
        """Make a signer with a key from the secret, which several servers share; else of_folder().

        Raises StoreError as of_folder() does.
        """
        return cls(signing_key(data_dir, secret))

    @property
    def fingerprint(self) -> str:
        """A text that is equal for equal keys, and says nothing else about the key."""
        return fingerprint(self.key)

    def sign(self, purpose: str, claims: Claims, ttl_s: float) -> str:
        """Return a token of URL-safe characters that is valid for ttl_s seconds."""
        now = time.time()
        times = {"iat": int(now), "exp": int(now + ttl_s)}
        payload = json.dumps({**claims, **times}, separators=(",", ":"))
        body = _text(payload.encode())
        return f"{body}.{_text(self._mac(purpose, body))}"

    def verify(self, purpose: str, token: str) -> dict[str, str | int]:
        """Return the signed claims, with `iat` (signed at) and `exp` (the end) in Unix seconds.

        Raises Unauthorized if the token was not signed here for this purpose, or has expired.
        """
        body, _, mac = token.partition(".")
        expected = _text(self._mac(purpose, body))
        if not hmac.compare_digest(mac.encode(), expected.encode()):
            raise Unauthorized("this link or token was not made by this hub, or was changed")
        claims: dict[str, str | int] = json.loads(base64.urlsafe_b64decode(body + "=="))
        now = time.time()
        # One that was signed while the clock was ahead would be valid until that date.
        if int(claims["exp"]) <= now or int(claims.get("iat", 0)) > now + _CLOCK_SLACK_S:
            raise Unauthorized("this link or token has expired; ask the hub for a new one")
        return claims

    def _mac(self, purpose: str, body: str) -> bytes:
        return hmac.new(self.key, f"{purpose}\n{body}".encode(), hashlib.sha256).digest()


def claims_for(caller: Caller | None, claims: Claims) -> Claims:
    """Return the claims with a mark of the caller's access token, empty for a guest."""
    assert caller is None or caller.token_mark, "a caller without a token asks for signed claims"
    return {**claims, _TOKEN: _NO_TOKEN if caller is None else caller.token_mark}


def caller_of_claims(session: ReadSession, claims: Claims) -> Caller | None:
    """Return the caller for whom claims were signed; None for a guest.

    Raises Unauthorized if the caller's access token was revoked or has expired.
    """
    mark = claims.get(_TOKEN)
    if not isinstance(mark, str):
        raise Unauthorized("an earlier version of this hub signed this; ask the hub for a new one")
    return ANONYMOUS if mark == _NO_TOKEN else caller_of_mark(session, mark)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

"""Links and tokens that carry their own proof: claims, an end, and an HMAC over both.

For clients that are sent on without their token: what is signed says what it allows, and for which
token, with which it ends.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from deltahub.registry import ReadSession
from deltahub.registry.access.caller import ANONYMOUS, Caller
from deltahub.registry.access.tokens import caller_of_mark
from deltahub.registry.errors import Unauthorized

Claims: TypeAlias = Mapping[str, str | int]

_TOKEN: Final = "token"
_NO_TOKEN: Final = ""
KEY_FILE: Final = "signing.key"
_KEY_BYTES: Final = 32


class Signer:
    """Signs and checks for one hub. purpose: what a token is for; it is good for nothing else."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of_folder(cls, data_dir: Path) -> "Signer":
        """With the key that lies in the data folder, made if absent."""
        path = data_dir / KEY_FILE
        if not path.exists():
            # Whole or not at all, and the first of two that start at once wins.
            fresh = data_dir / f"{KEY_FILE}.{secrets.token_hex(8)}"
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(fresh, path)
            except FileExistsError:
                pass
            fresh.unlink()
        return cls(path.read_bytes())

    def sign(self, purpose: str, claims: Claims, ttl_s: float) -> str:
        """A token of URL-safe characters, good for ttl_s seconds."""
        said = json.dumps({**claims, "exp": int(time.time() + ttl_s)}, separators=(",", ":"))
        body = _text(said.encode())
        return f"{body}.{_text(self._mac(purpose, body))}"

    def verify(self, purpose: str, token: str) -> dict[str, str | int]:
        """What was signed, `exp` (Unix seconds) included; Unauthorized if it is not, or is over."""
        body, _, mac = token.partition(".")
        expected = _text(self._mac(purpose, body))
        if not hmac.compare_digest(mac.encode(), expected.encode()):
            raise Unauthorized("this link or token was not made by this hub, or was changed")
        claims: dict[str, str | int] = json.loads(base64.urlsafe_b64decode(body + "=="))
        if int(claims["exp"]) <= time.time():
            raise Unauthorized("this link or token has expired; ask the hub for a new one")
        return claims

    def _mac(self, purpose: str, body: str) -> bytes:
        return hmac.new(self._key, f"{purpose}\n{body}".encode(), hashlib.sha256).digest()


def claims_for(caller: Caller | None, claims: Claims) -> Claims:
    """The claims, signed for the token that the caller showed; nobody shows none."""
    assert caller is None or caller.token_mark, "a caller without a token asks for signed claims"
    return {**claims, _TOKEN: _NO_TOKEN if caller is None else caller.token_mark}


def caller_of_claims(session: ReadSession, claims: Claims) -> Caller | None:
    """For whom the claims were signed; Unauthorized once their token was revoked or is over."""
    mark = claims.get(_TOKEN)
    if not isinstance(mark, str):
        raise Unauthorized("an earlier version of this hub signed this; ask the hub for a new one")
    return ANONYMOUS if mark == _NO_TOKEN else caller_of_mark(session, mark)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

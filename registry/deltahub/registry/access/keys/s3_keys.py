"""Keys of S3 clients, each derived from an access token, with which they end.

An S3 client proves that it knows a secret by a signature, for which the hub needs the secret, too.
But of a token the hub has a hash alone. So the secret is an HMAC of that hash by the hub's own key:
neither a copy of the database nor the token makes it without that key.
"""

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.tokens import holder_of
from deltahub.registry.db.models import Token, User
from deltahub.registry.errors import Forbidden, InvalidRequest, NotFound, Unauthorized
from deltahub.registry.registry import Registry

PREFIX: Final = "DHS3"
# 16 digits of the token's hash, then its id: ids are given again, as in marks of tokens.
_ACCESS_KEY_ID: Final = re.compile(rf"{PREFIX}([0-9A-F]{{16}})([0-9]{{1,18}})")
_PURPOSE: Final = b"s3 secret\n"


@dataclass(frozen=True)
class S3Keys:
    """What an S3 client is given. user: whose token they were derived from."""

    user: str
    access_key_id: str
    secret_access_key: str


@dataclass(frozen=True)
class KeyHolder:
    """The token behind an access key id, which its caller has not proved to know yet."""

    _token: Token
    _user: User

    def keys(self, hub_key: bytes) -> S3Keys:
        """hub_key: the hub's secret key (signing_key.py)."""
        token = self._token
        mac = hmac.new(hub_key, _PURPOSE + token.hash.encode(), hashlib.sha256).digest()
        secret = base64.urlsafe_b64encode(mac).rstrip(b"=").decode()
        key_id = f"{PREFIX}{token.hash[:16].upper()}{token.id}"
        return S3Keys(self._user.name, key_id, secret)

    def is_of(self, hash_part: str) -> bool:
        """Whether the token's hash begins with these digits."""
        return self._token.hash.startswith(hash_part)

    def caller(self) -> Caller:
        """TokenExpired; Unauthorized if the user was disabled."""
        return holder_of(self._token, self._user)


def find_key_holder(reg: Registry, access_key_id: str) -> KeyHolder | None:
    """The token that an access key id was derived from; None if there is none any more."""
    match = _ACCESS_KEY_ID.fullmatch(access_key_id)
    if match is None:
        return None
    holder = _holder_of(reg, int(match[2]))
    return holder if holder is not None and holder.is_of(match[1].lower()) else None


def keys_of_token(reg: Registry, token_id: int, hub_key: bytes) -> S3Keys:
    """The keys of any token, for the operator's shell; NotFound, InvalidRequest."""
    holder = _holder_of(reg, token_id)
    if holder is None:
        raise NotFound(f"there is no token {token_id}; `deltahub user token list` shows them")
    try:
        holder.caller()
    except Unauthorized as error:
        raise InvalidRequest(f"token {token_id} opens nothing: {error}") from error
    keys = holder.keys(hub_key)
    with reg.db.write() as session:
        audit.append(session, None, "token.s3_keys", keys.user, {"token_id": token_id})
    return keys


def own_keys(reg: Registry, caller: Caller, hub_key: bytes) -> S3Keys:
    """The keys of the token that the caller shows; Forbidden in a browser's session."""
    token_id, _, hash_part = caller.token_mark.partition("-")
    holder = _holder_of(reg, int(token_id)) if token_id.isdecimal() else None
    if holder is None or not holder.is_of(hash_part):
        raise Forbidden(
            "keys for S3 clients come of a token: make one (of scope read, for engines), and ask"
            " with it"
        )
    return holder.keys(hub_key)


def _holder_of(reg: Registry, token_id: int) -> KeyHolder | None:
    query = select(Token, User).join(User, User.id == Token.user_id).where(Token.id == token_id)
    with reg.db.read() as session:
        row = session.execute(query).one_or_none()
    return None if row is None else KeyHolder(*row)

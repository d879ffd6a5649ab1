"""Your own access tokens, and the keys of S3 clients that come of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from deltahub.client.api.endpoints import Api
from deltahub.client.api.parsing import record
from deltahub.client.records import Token


@dataclass(frozen=True)
class S3Keys:
    """What S3 clients are given. endpoint_url: None if the hub has no address for them."""

    access_key_id: str
    secret_access_key: str
    endpoint_url: str | None = None


class Tokens:
    """The part of `Hub` that lists, makes and revokes tokens."""

    _api: Api

    def tokens(self) -> Sequence[Token]:
        """Your access tokens, without their secrets."""
        return self._api.list_tokens()

    def create_token(self, label: str, *, scope: str = "read", ttl_s: int | None = None) -> str:
        """Make a token; its secret. It allows no more than yours, and ends no later."""
        return self._api.create_token(label, scope, ttl_s)

    def revoke_token(self, token_id: int) -> None:
        """Make one of your tokens useless at once."""
        self._api.delete_token(token_id)

    def s3_keys(self) -> S3Keys:
        """Keys with which S3 clients read what this token may read, until it ends."""
        answer = self._api.transport.call("GET", "/v1/tokens/s3")
        return answer.read(partial(record, S3Keys))

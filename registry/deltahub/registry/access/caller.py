"""Who calls: the user behind a token, the token's scope, and what it may do at all."""

from dataclasses import dataclass
from typing import Literal

from deltahub.registry.errors import Forbidden, Unauthorized

Action = Literal["read", "write", "admin"]


Scope = Literal["read", "write", "admin"]


Role = Literal["read", "write", "admin"]


@dataclass(frozen=True)
class Caller:
    """Who asks, as a valid token says. Nobody at all is None (ANONYMOUS).

    The scope limits what the user may do by role: `read` only reads; `write` does everything that
    the roles in namespaces allow; `admin`, of a user who is an administrator, does everything.
    token_mark: names the token in what the hub signs for the caller, and is no secret; empty where
    the hub itself acts for a user.
    """

    user_id: int
    name: str
    is_admin: bool
    scope: Scope
    token_mark: str = ""

    @property
    def is_superuser(self) -> bool:
        return self.is_admin and self.scope == "admin"

    @property
    def may_write(self) -> bool:
        return self.scope != "read"


ANONYMOUS: Caller | None = None


NO_TOKEN = (
    "this needs a token: `deltahub login` stores yours; the hub's operator makes one with"
    " `deltahub user token create`"
)


def require_writer(caller: Caller | None) -> Caller:
    """The caller, if their token may change anything at all; else Unauthorized, Forbidden."""
    if caller is None:
        raise Unauthorized(NO_TOKEN)
    if not caller.may_write:
        raise Forbidden(f"the token of {caller.name} has scope read; this needs scope write")
    return caller

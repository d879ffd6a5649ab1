"""The caller: the user who holds a token, and the token's scope."""

from dataclasses import dataclass
from typing import Literal

from deltahub.registry.errors import Forbidden, Unauthorized

Action = Literal["read", "write", "admin"]
Scope = Literal["read", "write", "admin"]
Role = Literal["read", "write", "admin"]


@dataclass(frozen=True)
class Caller:
    """The user who holds a valid token. A caller without a token is None (ANONYMOUS).

    The scope limits the rights that the user has by role. `read` allows reading only; `write`
    allows everything that the roles in namespaces allow; `admin`, for administrators only, allows
    everything. token_mark: identifies the token in signed links and claims, and is no secret;
    empty if the hub itself acts for a user.
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
    "this needs a token: `deltahub login` stores yours; the hub's page /-/settings/tokens makes"
    " one, or its operator with `deltahub user token create`"
)


def require_writer(caller: Caller | None) -> Caller:
    """The caller; Unauthorized without a token, Forbidden if the token has scope read."""
    if caller is None:
        raise Unauthorized(NO_TOKEN)
    if not caller.may_write:
        raise Forbidden(f"the token of {caller.name} has scope read; this needs scope write")
    return caller


def require_operator(caller: Caller | None, *, by_shell: bool) -> None:
    """Forbidden unless the operator's shell asks, or an administrator of the hub.

    by_shell is said apart, so that a request without a token never counts as the shell.
    """
    if not by_shell and not require_writer(caller).is_superuser:
        raise Forbidden(
            "users are managed by administrators of the hub, with a token of scope admin"
        )

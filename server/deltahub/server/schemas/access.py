"""Users, their tokens and sessions, and organizations."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from deltahub.server.schemas.base import In, Out

Role = Literal["read", "write", "admin"]
Scope = Literal["read", "write", "admin"]


class TokenIn(In):
    label: str = Field(description="what the token is for", max_length=200)
    scope: Scope = Field(default="read", description="no more than the caller's own")
    ttl_s: int | None = Field(
        default=None,
        gt=0,
        description="how long it lives; null: until it is revoked, or as long as the token that"
        " makes it",
    )


class TokenOut(Out):
    id: int
    scope: Scope
    label: str
    created_at: datetime
    expires_at: datetime | None


class TokensOut(Out):
    items: list[TokenOut]


class NewTokenOut(Out):
    token: str = Field(description="the secret, which no later answer has")


class S3KeysOut(Out):
    access_key_id: str
    secret_access_key: str
    endpoint_url: str | None = Field(description="where S3 clients read; null: nowhere")


class SessionOut(Out):
    id: int
    agent: str = Field(description="what the browser calls itself")
    address: str = Field(description="from which it logged in")
    created_at: datetime
    seen_at: datetime = Field(description="to a few minutes")
    expires_at: datetime


class SessionsOut(Out):
    items: list[SessionOut]


class OrganizationIn(In):
    name: str


class MemberIn(In):
    role: Role


class MemberOut(Out):
    user: str
    role: Role


class OrganizationOut(Out):
    name: str
    members: list[MemberOut] = Field(description="a page of them, ordered by name")


class UserIn(In):
    name: str
    is_admin: bool = False


class UserChangeIn(In):
    is_disabled: bool


class UserOut(Out):
    name: str
    is_admin: bool
    created_at: datetime
    disabled_at: datetime | None
    has_password: bool


class UsersOut(Out):
    items: list[UserOut]


class InvitationOut(Out):
    path: str = Field(
        description="behind the hub's address: a page where the user sets a password, once, within"
        " seven days"
    )


class RemovedUserOut(Out):
    without_administrator: list[str] = Field(
        description="organizations that no administrator is left in"
    )

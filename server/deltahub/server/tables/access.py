"""Who may do what, and what they did."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.names import quoted
from deltahub.registry.reports.lists import audit_log, people
from deltahub.registry.reports.lists.pages import Asked, Page
from deltahub.server.hub import Hub
from deltahub.server.tables.table import Column, Filter, Table


def _users(hub: Hub, caller: Caller, asked: Asked, given: Mapping[str, str]) -> Page[Any]:
    return people.list_users(hub.registry, asked, words=given["words"], state=given["state"])


def _organizations(hub: Hub, caller: Caller, asked: Asked, given: Mapping[str, str]) -> Page[Any]:
    return people.list_organizations(hub.registry, asked, words=given["words"])


def _tokens(hub: Hub, caller: Caller, asked: Asked, given: Mapping[str, str]) -> Page[Any]:
    return people.list_tokens(hub.registry, asked, user=given["user"])


def _sessions(hub: Hub, caller: Caller, asked: Asked, given: Mapping[str, str]) -> Page[Any]:
    return people.list_sessions(hub.registry, asked, user=given["user"])


def _events(hub: Hub, caller: Caller, asked: Asked, given: Mapping[str, str]) -> Page[Any]:
    wanted = audit_log.EventFilter(
        given["user"], given["action"], given["target"],
        _time(given["since"]), _time(given["until"]),
    )  # fmt: skip
    return audit_log.list_events(hub.registry, asked, wanted)


def _time(text: str) -> datetime | None:
    """A day or a time in UTC, as browsers and ISO 8601 write it."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f"{quoted(text)} is no time: write 2026-01-31") from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


_STATES: Final = (
    ("all", "all users"), ("active", "active"), ("disabled", "disabled"),
    ("admin", "administrators"),
)  # fmt: skip
USERS: Final = Table(
    "users",
    (
        Column("name", "User", sort="name"),
        Column("is_admin", "Administrator", "flag"),
        Column("disabled_at", "Disabled", "time"),
        Column("seen_at", "Last seen", "time", "seen"),
        Column("n_tokens", "Tokens", "number", "tokens"),
        Column("n_sessions", "Browsers", "number"),
        Column("created_at", "Made", "time", "created"),
    ),
    _users,
    "name",
    (Filter("words", "Name"), Filter("state", "State", _STATES, default="all")),
    ("No user matches", "Try fewer letters of the name, or another state."),
    about="All users. Last seen: by a browser.",
)
ORGANIZATIONS: Final = Table(
    "organizations",
    (
        Column("name", "Organization", sort="name"),
        Column("n_members", "Members", "number", "members"),
        Column("n_admins", "Who manage it", "number"),
    ),
    _organizations,
    "name",
    (Filter("words", "Name"),),
    ("No organizations", "Make one with: deltahub user org add NAME"),
    about="Namespaces that several users share.",
)
TOKENS: Final = Table(
    "tokens",
    (
        Column("id", "Token", "number"),
        Column("user", "User", sort="user"),
        Column("scope", "Scope", sort="scope"),
        Column("label", "Label"),
        Column("created_at", "Made", "time", "created"),
        Column("expires_at", "Ends", "time", "expires"),
    ),
    _tokens,
    "-created",
    (Filter("user", "User"),),
    ("No tokens", "Users make theirs in their settings."),
    about="Access tokens without their secrets.",
)
SESSIONS: Final = Table(
    "sessions",
    (
        Column("id", "Session", "number"),
        Column("user", "User", sort="user"),
        Column("agent", "Browser", is_wide=True),
        Column("address", "Address", sort="address"),
        Column("seen_at", "Last seen", "time", "seen"),
        Column("created_at", "Logged in", "time", "created"),
        Column("expires_at", "Ends", "time"),
    ),
    _sessions,
    "-seen",
    (Filter("user", "User"),),
    ("Nobody is logged in", "Browsers that people log in with are listed here."),
    about="Browsers that are logged in.",
)
AUDIT: Final = Table(
    "audit",
    (
        Column("id", "Event", "number", is_shown=False),
        Column("at", "When", "time", "at"),
        Column("user", "User"),
        Column("action", "Action"),
        Column("target", "Target", is_wide=True),
        Column("detail", "Details", is_wide=True),
    ),
    _events,
    "-at",
    (
        Filter("user", "User"),
        Filter("action", "Action"),
        Filter("target", "Target"),
        Filter("since", "From", is_date=True),
        Filter("until", "Until", is_date=True),
    ),
    ("No event matches", "Filters look for parts of words. Try fewer of them, or look further."),
    about="Who did what, and when; without a user, the operator in a shell did it.",
)

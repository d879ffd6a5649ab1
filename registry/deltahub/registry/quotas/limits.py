"""Refuses what would exceed a namespace's quota, before bytes move."""

from dataclasses import dataclass

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.permissions import namespace_role
from deltahub.registry.access.repositories import namespace_row
from deltahub.registry.db.models import Namespace
from deltahub.registry.db.session import ReadSession, WriteSession, also_lock
from deltahub.registry.db.tables.quotas import Quota
from deltahub.registry.errors import Forbidden, InvalidRequest, NotFound, QuotaExceeded
from deltahub.registry.names import quoted
from deltahub.registry.quotas.usage import Usage, usage_of
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.sizes import human_size

MOST = 1 << 60


@dataclass(frozen=True)
class Limits:
    """What a namespace may use; see Usage. None: no limit."""

    repositories: int | None = None
    stored_bytes: int | None = None
    logical_bytes: int | None = None


def limits_of(session: ReadSession, settings: Settings, namespace_id: int) -> Limits:
    """The namespace's own limits, else the hub's defaults."""
    own = session.get(Quota, namespace_id)
    if own is not None:
        return Limits(own.repositories, own.stored_bytes, own.logical_bytes)
    return Limits(
        settings.quota_repositories, settings.quota_stored_bytes, settings.quota_logical_bytes
    )


def check_push(session: ReadSession, settings: Settings, namespace_id: int, n_bytes: int) -> None:
    """QuotaExceeded if files of so many bytes, new to their repository, are too much.

    How much of them is stored is known only afterwards: stored bytes refuse what comes after the
    limit is reached.
    """
    limits = limits_of(session, settings, namespace_id)
    if n_bytes <= 0 or (limits.stored_bytes is None and limits.logical_bytes is None):
        return
    used = usage_of(session, namespace_id)
    if limits.logical_bytes is not None and used.logical_bytes + n_bytes > limits.logical_bytes:
        raise QuotaExceeded(
            f"{_name(session, namespace_id)} has {human_size(used.logical_bytes)} of files of"
            f" {human_size(limits.logical_bytes)} that it may have, and this would add"
            f" {human_size(n_bytes)}: {_WAYS}"
        )
    _check_stored(session, namespace_id, used, limits)


def check_room(session: ReadSession, settings: Settings, namespace_id: int) -> None:
    """QuotaExceeded if no new byte may come, for clients that send files before they name them."""
    limits = limits_of(session, settings, namespace_id)
    if limits.stored_bytes is None and limits.logical_bytes is None:
        return
    used = usage_of(session, namespace_id)
    if limits.logical_bytes is not None and used.logical_bytes >= limits.logical_bytes:
        raise QuotaExceeded(
            f"{_name(session, namespace_id)} has {human_size(used.logical_bytes)} of files, and may"
            f" have {human_size(limits.logical_bytes)}: {_WAYS}"
        )
    _check_stored(session, namespace_id, used, limits)


def _check_stored(session: ReadSession, namespace_id: int, used: Usage, limits: Limits) -> None:
    if limits.stored_bytes is not None and used.stored_bytes >= limits.stored_bytes:
        raise QuotaExceeded(
            f"{_name(session, namespace_id)} stores {human_size(used.stored_bytes)}, and may store"
            f" {human_size(limits.stored_bytes)}: {_WAYS}"
        )


def lock_quota(session: WriteSession, settings: Settings, namespace_id: int) -> None:
    """Let other pushes to the namespace wait, if it has a limit that both together may exceed."""
    limits = limits_of(session, settings, namespace_id)
    if limits.stored_bytes is not None or limits.logical_bytes is not None:
        also_lock(session, f"quota {namespace_id}")


def check_used(session: ReadSession, settings: Settings, namespace_id: int) -> None:
    """QuotaExceeded if what is counted already is too much, so that the transaction ends."""
    limit = limits_of(session, settings, namespace_id).logical_bytes
    used = usage_of(session, namespace_id).logical_bytes
    if limit is not None and used > limit:
        raise QuotaExceeded(
            f"{_name(session, namespace_id)} would have {human_size(used)} of files, and may have"
            f" {human_size(limit)}: {_WAYS}"
        )


_WAYS = (
    "delete or prune repositories there (`deltahub prune`), or ask the hub's administrator for more"
)


def check_repository(session: ReadSession, settings: Settings, namespace_id: int) -> None:
    """QuotaExceeded if the namespace may have no further repository."""
    limit = limits_of(session, settings, namespace_id).repositories
    if limit is not None and (used := usage_of(session, namespace_id).repositories) >= limit:
        raise QuotaExceeded(
            f"{_name(session, namespace_id)} has {used} repositories, and may have {limit}: delete"
            " one, or ask the hub's administrator for more"
        )


def lock_repositories(session: WriteSession, settings: Settings, namespace_id: int) -> None:
    """Let others that make a repository there wait, if it has a limit; see check_repository."""
    if limits_of(session, settings, namespace_id).repositories is not None:
        also_lock(session, f"repositories {namespace_id}")
        check_repository(session, settings, namespace_id)


def set_limits(
    reg: Registry, caller: Caller | None, namespace: str, limits: Limits | None, *, by_shell: bool
) -> None:
    """Set a namespace's limits, or the hub's defaults again (None).

    by_shell: the operator's shell does it; otherwise the caller must be an administrator of the
    hub. NotFound, Forbidden.
    """
    for value in () if limits is None else vars(limits).values():
        if value is not None and not 0 <= value <= MOST:
            raise InvalidRequest(f"a limit is 0 to {MOST}, not {value}")
    if not by_shell and not require_writer(caller).is_superuser:
        raise Forbidden("quotas are set by administrators of the hub, with a token of scope admin")
    with reg.db.write() as session:
        row_id = namespace_row(session, namespace)
        if row_id is None:
            raise _unknown(namespace)
        own = session.get(Quota, row_id)
        if own is not None:
            session.delete(own)
            session.flush()
        if limits is not None:
            session.add(Quota(namespace_id=row_id, **vars(limits)))
        detail = None if limits is None else vars(limits)
        audit.append(session, caller, "quota.set", namespace, detail)


def show_limits(reg: Registry, caller: Caller | None, namespace: str) -> tuple[Usage, Limits]:
    """(what a namespace uses, what it may use), for its members and for administrators.

    Forbidden for others, also if there is no such namespace. NotFound.
    """
    with reg.db.read() as session:
        row_id = namespace_row(session, namespace)
        if caller is None or not caller.is_superuser:
            role = None
            if caller is not None and row_id is not None:
                role = namespace_role(session, caller, row_id)
            if role is None:
                raise Forbidden(f"only its members see what {quoted(namespace)} uses")
        return _used_and_limits(session, reg.settings, namespace, row_id)


def show_limits_to_operator(reg: Registry, namespace: str) -> tuple[Usage, Limits]:
    """The same for the operator's shell. NotFound."""
    with reg.db.read() as session:
        row_id = namespace_row(session, namespace)
        return _used_and_limits(session, reg.settings, namespace, row_id)


def _used_and_limits(
    session: ReadSession, settings: Settings, namespace: str, row_id: int | None
) -> tuple[Usage, Limits]:
    if row_id is None:
        raise _unknown(namespace)
    return usage_of(session, row_id), limits_of(session, settings, row_id)


def _unknown(namespace: str) -> NotFound:
    return NotFound(f"there is no namespace {quoted(namespace)}")


def _name(session: ReadSession, namespace_id: int) -> str:
    return session.get_one(Namespace, namespace_id).name

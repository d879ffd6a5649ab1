"""Whether adapters that changed their base are converted: the rule of a repository or namespace."""

from hashlib import sha256
from typing import Final, Literal, get_args

from sqlalchemy import ColumnElement, delete, select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.permissions import namespace_role
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.db.models import Namespace, Repository
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.comparisons import ConversionRule
from deltahub.registry.errors import Forbidden, InvalidRequest
from deltahub.registry.registry import Registry

Convert = Literal["ask", "auto", "off"]
"""ask: by whoever asks for it. auto: when it is pushed. off: never, and nothing is quarantined."""

ASK: Final = "ask"
AUTO: Final = "auto"
OFF: Final = "off"


def set_rule(reg: Registry, caller: Caller | None, target: str, convert: str) -> None:
    """Set the rule of `namespace` or `namespace/name`.

    Forbidden unless the caller is an administrator there; InvalidRequest for another word.
    """
    if convert not in get_args(Convert):
        raise InvalidRequest(f"convert is one of {', '.join(get_args(Convert))}, not {convert!r}")
    with reg.db.write() as session:
        of = _find(session, caller, target)
        session.execute(delete(ConversionRule).where(_is_of(*of)))
        kind, row_id = of
        session.add(
            ConversionRule(
                namespace_id=row_id if kind == "namespace" else None,
                repository_id=row_id if kind == "repository" else None,
                convert=convert,
            )
        )
        audit.append(session, caller, "adapter.rule", target, {"convert": convert})


def conversion_key(adapter: str) -> str:
    """The idempotency key of the job that converts `namespace/name@commit`: whoever asks twice, by
    a rule or on a page, gets one job.
    """
    return f"convert {sha256(adapter.encode()).hexdigest()[:48]}"


def rule_for(session: ReadSession, repository: Repository) -> str:
    """The rule of a repository: its own, or its namespace's, or `ask`."""
    own = session.scalar(
        select(ConversionRule.convert).where(ConversionRule.repository_id == repository.id)
    )
    if own is not None:
        return own
    of_namespace = session.scalar(
        select(ConversionRule.convert).where(ConversionRule.namespace_id == repository.namespace_id)
    )
    return of_namespace or ASK


def _find(session: ReadSession, caller: Caller | None, target: str) -> tuple[str, int]:
    """(kind, row) of what the rule is for, if the caller administers it."""
    if "/" in target:
        return "repository", load_repository(session, caller, target, "admin").id
    user = require_writer(caller)
    namespace = session.scalar(select(Namespace).where(Namespace.name == target))
    role = None if namespace is None else namespace_role(session, user, namespace.id)
    if namespace is None or (role != "admin" and not user.is_superuser):
        raise Forbidden(f"{user.name} is no administrator of {target}")
    return "namespace", namespace.id


def _is_of(kind: str, row_id: int) -> ColumnElement[bool]:
    if kind == "namespace":
        return ConversionRule.namespace_id == row_id
    return ConversionRule.repository_id == row_id

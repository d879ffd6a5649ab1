"""Whether adapters that changed their base are converted: the rule of a repository or namespace."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal, get_args

from sqlalchemy import ColumnElement, delete, select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import NO_TOKEN, Caller, require_writer
from deltahub.registry.access.permissions import namespace_role
from deltahub.registry.access.repositories import load_repository, namespace_row
from deltahub.registry.db.models import Repository
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.comparisons import ConversionRule
from deltahub.registry.errors import Forbidden, InvalidRequest, Unauthorized
from deltahub.registry.registry import Registry

Convert = Literal["ask", "auto", "off"]
"""ask: by whoever asks for it. auto: when it is pushed. off: never, and nothing is quarantined."""

Source = Literal["repository", "namespace", "default"]

INHERIT: Final = "inherit"
"""In place of a rule: none of its own, so that the namespace's counts, or the default."""
ASK: Final = "ask"
AUTO: Final = "auto"
OFF: Final = "off"


def set_rule(reg: Registry, caller: Caller | None, target: str, convert: str) -> None:
    """Set the rule of `namespace` or `namespace/name`.

    convert: of Convert, or INHERIT, which removes the rule. Forbidden unless the caller is an
    administrator there; InvalidRequest for another word.
    """
    words = (*get_args(Convert), INHERIT)
    if convert not in words:
        raise InvalidRequest(f"convert is one of {', '.join(words)}, not {convert!r}")
    with reg.db.write() as session:
        of = find_administered(session, caller, target)
        session.execute(delete(ConversionRule).where(_is_of(*of)))
        kind, row_id = of
        if convert != INHERIT:
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


@dataclass(frozen=True)
class RuleInForce:
    """The rule that counts for a namespace or a repository, and whose it is."""

    convert: str
    source: Source


def read_rule(reg: Registry, caller: Caller | None, target: str) -> RuleInForce:
    """The rule of `namespace` or `namespace/name`.

    RepositoryNotFound for a repository that the caller may not read; Forbidden for a namespace in
    which the caller has no role.
    """
    with reg.db.read() as session:
        if "/" in target:
            return rule_in_force(session, load_repository(session, caller, target))
        return _of_namespace(session, find_joined(session, caller, target))


def rule_in_force(session: ReadSession, repository: Repository) -> RuleInForce:
    """The rule of a repository: its own, or its namespace's, or `ask`."""
    own = session.scalar(
        select(ConversionRule.convert).where(ConversionRule.repository_id == repository.id)
    )
    if own is not None:
        return RuleInForce(own, "repository")
    return _of_namespace(session, repository.namespace_id)


def rule_for(session: ReadSession, repository: Repository) -> str:
    """The same without whose it is."""
    return rule_in_force(session, repository).convert


def _of_namespace(session: ReadSession, namespace_id: int) -> RuleInForce:
    found = session.scalar(
        select(ConversionRule.convert).where(ConversionRule.namespace_id == namespace_id)
    )
    return RuleInForce(ASK, "default") if found is None else RuleInForce(found, "namespace")


def find_administered(session: ReadSession, caller: Caller | None, target: str) -> tuple[str, int]:
    """(kind, row) of the namespace or repository that a rule is for; Forbidden unless the caller is
    an administrator there.
    """
    if "/" in target:
        return "repository", load_repository(session, caller, target, "admin").id
    user = require_writer(caller)
    row_id = namespace_row(session, target)
    role = None if row_id is None else namespace_role(session, user, row_id)
    if row_id is None or (role != "admin" and not user.is_superuser):
        raise Forbidden(f"{user.name} is no administrator of {target}")
    return "namespace", row_id


def _is_of(kind: str, row_id: int) -> ColumnElement[bool]:
    if kind == "namespace":
        return ConversionRule.namespace_id == row_id
    return ConversionRule.repository_id == row_id


def find_joined(session: ReadSession, caller: Caller | None, name: str) -> int:
    """The row of a namespace whose rules the caller may see; Forbidden without a role in it."""
    if caller is None:
        raise Unauthorized(NO_TOKEN)
    row_id = namespace_row(session, name)
    role = None if row_id is None else namespace_role(session, caller, row_id)
    if row_id is None or (role is None and not caller.is_superuser):
        raise Forbidden(f"{caller.name} has no role in {name}")
    return row_id

"""Rules of retention, kept for a repository or for all repositories of a namespace."""

import logging
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, delete, select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.permissions import full_name, namespace_role, role_needed
from deltahub.registry.access.repositories import load_repository, namespace_row
from deltahub.registry.db.models import Repository
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.retention import RetentionRule
from deltahub.registry.errors import Forbidden
from deltahub.registry.names import quoted
from deltahub.registry.registry import Registry
from deltahub.registry.retention.drop import sweep
from deltahub.registry.retention.prune import Pruned, Rule, count_due, prune_in

log = logging.getLogger(__name__)

Target = tuple[Literal["namespace", "repository"], int]


def set_rule(reg: Registry, caller: Caller | None, target: str, rule: Rule | None) -> None:
    """Set the rule of `namespace` or `namespace/name`, or take it away (None).

    Forbidden unless the caller is an administrator there. It works on the next commit or gc.
    """
    if rule is not None:
        rule.check()
    with reg.db.write() as session:
        kind, row_id = _find(session, caller, target, "admin")
        session.execute(delete(RetentionRule).where(_is_of(kind, row_id)))
        if rule is not None:
            session.add(
                RetentionRule(
                    namespace_id=row_id if kind == "namespace" else None,
                    repository_id=row_id if kind == "repository" else None,
                    keep_last=rule.keep_last,
                    keep_every=rule.keep_every,
                    older_than_s=rule.older_than_s,
                )
            )
        detail = None if rule is None else vars(rule)
        audit.append(session, caller, "retention.set", target, detail)


def get_rule(reg: Registry, caller: Caller | None, target: str) -> tuple[Rule, str] | None:
    """(the rule that counts for a namespace or repository, whose it is); None without one."""
    with reg.db.read() as session:
        kind, row_id = _find(session, caller, target, "write")
        found = session.scalar(select(RetentionRule).where(_is_of(kind, row_id)))
        of = target
        if found is None and kind == "repository":
            of = target.partition("/")[0]
            namespace = session.get_one(Repository, row_id).namespace_id
            found = session.scalar(select(RetentionRule).where(_is_of("namespace", namespace)))
        return None if found is None else (_rule(found), of)


def apply_rule(reg: Registry, repository_id: int) -> Pruned | None:
    """Drop what the rule of this repository does not keep; None without a rule."""
    with reg.db.read() as session:
        rule = _rule_for(session, repository_id)
    if rule is None:
        return None
    with reg.db.write() as session:
        repository = session.get(Repository, repository_id)
        if repository is None:
            return None
        pruned = prune_in(session, None, repository, rule)
    if pruned.commits:
        log.info("repository=%d lost %d old revisions by rule", repository_id, len(pruned.commits))
    return pruned


def tidy(reg: Registry) -> int:
    """Drop what no branch or tag reaches, and what the rules of all repositories do not keep.

    Returns the number of dropped revisions.
    """
    n_dropped = sweep(reg)
    with reg.db.read() as session:
        found = ruled_repositories(session)
    for repository_id in found:
        pruned = apply_rule(reg, repository_id)
        n_dropped += 0 if pruned is None else len(pruned.commits)
    return n_dropped


@dataclass(frozen=True)
class Due:
    """What the next tidy() drops of a repository by its rule. of: whose rule it is."""

    repository: str
    of: str
    revisions: int


def find_due(session: ReadSession) -> list[Due]:
    """What rules do not keep any more, because it has become old or a rule is new."""
    found: list[Due] = []
    for row_id in ruled_repositories(session):
        repository = session.get_one(Repository, row_id)
        own = session.scalar(select(RetentionRule.id).where(_is_of("repository", row_id)))
        rule = _rule_for(session, row_id)
        n_due = 0 if rule is None else count_due(session, repository, rule)
        if n_due:
            name = full_name(session, repository)
            of = name.partition("/")[0] if own is None else name
            found.append(Due(name, of, n_due))
    return found


def ruled_repositories(session: ReadSession) -> list[int]:
    """Repositories that have a rule, their own or their namespace's."""
    namespaces = select(RetentionRule.namespace_id).where(RetentionRule.namespace_id.is_not(None))
    own = select(RetentionRule.repository_id).where(RetentionRule.repository_id.is_not(None))
    query = select(Repository.id).where(
        Repository.namespace_id.in_(namespaces) | Repository.id.in_(own)
    )
    return list(session.scalars(query.order_by(Repository.id)))


def _rule_for(session: ReadSession, repository_id: int) -> Rule | None:
    found = session.scalar(select(RetentionRule).where(_is_of("repository", repository_id)))
    if found is None:
        namespace = select(Repository.namespace_id).where(Repository.id == repository_id)
        found = session.scalar(
            select(RetentionRule).where(RetentionRule.namespace_id == namespace.scalar_subquery())
        )
    return None if found is None else _rule(found)


def _rule(row: RetentionRule) -> Rule:
    return Rule(row.keep_last, row.keep_every, row.older_than_s)


def _is_of(kind: str, row_id: int) -> ColumnElement[bool]:
    if kind == "namespace":
        return RetentionRule.namespace_id == row_id
    return RetentionRule.repository_id == row_id


def _find(
    session: ReadSession, caller: Caller | None, target: str, action: Literal["write", "admin"]
) -> Target:
    """(kind, row) of a namespace or repository where the caller may do the action."""
    if "/" in target:
        return "repository", load_repository(session, caller, target, action).id
    writer = require_writer(caller)
    row_id = namespace_row(session, target)
    role = None
    if row_id is not None:
        role = "admin" if writer.is_superuser else namespace_role(session, writer, row_id)
    if row_id is None or role is None:
        raise Forbidden(
            f"{writer.name} is no member of {quoted(target)}, or there is no such namespace"
        )
    if role not in (("admin",) if action == "admin" else ("write", "admin")):
        raise role_needed(session, writer, action, row_id, f"the namespace {target}")
    return "namespace", row_id

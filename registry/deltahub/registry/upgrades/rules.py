"""Whether upgrades are proposed and begun by themselves: the policy of a base or a namespace."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from sqlalchemy import delete, select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.adapters.rules import INHERIT, Source, find_administered, find_joined
from deltahub.registry.db.models import Repository
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.comparisons import UpgradeRule
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.registry import Registry

Policy = Literal["ask", "auto", "off"]
"""ask: upgrades are proposed. auto: those that a card tells of begin. off: none is proposed."""

ASK: Final = "ask"
AUTO: Final = "auto"
OFF: Final = "off"


@dataclass(frozen=True)
class PolicyInForce:
    """The policy that counts for a base or a namespace, and whose it is."""

    policy: str
    source: Source


def set_policy(reg: Registry, caller: Caller | None, target: str, policy: str) -> None:
    """Set the policy of `namespace`, or of the base `namespace/name`; inherit: it has none.

    Forbidden unless the caller is an administrator there; InvalidRequest for another word.
    """
    words = (*get_args(Policy), INHERIT)
    if policy not in words:
        raise InvalidRequest(f"policy is one of {', '.join(words)}, not {policy!r}")
    with reg.db.write() as session:
        kind, row_id = find_administered(session, caller, target)
        is_namespace = kind == "namespace"
        column = UpgradeRule.namespace_id if is_namespace else UpgradeRule.repository_id
        session.execute(delete(UpgradeRule).where(column == row_id))
        if policy != INHERIT:
            rule = UpgradeRule(policy=policy)
            if is_namespace:
                rule.namespace_id = row_id
            else:
                rule.repository_id = row_id
            session.add(rule)
        audit.append(session, caller, "upgrade.rule", target, {"policy": policy})


def read_policy(reg: Registry, caller: Caller | None, target: str) -> PolicyInForce:
    """The policy of `namespace` or `namespace/name`.

    RepositoryNotFound for a repository that the caller may not read; Forbidden for a namespace in
    which the caller has no role.
    """
    with reg.db.read() as session:
        if "/" in target:
            return policy_in_force(session, load_repository(session, caller, target))
        return _of_namespace(session, find_joined(session, caller, target))


def policy_in_force(session: ReadSession, base: Repository) -> PolicyInForce:
    """The policy of a base: its own, or its namespace's, or `ask`."""
    query = select(UpgradeRule.policy).where(UpgradeRule.repository_id == base.id)
    own = session.scalar(query)
    if own is not None:
        return PolicyInForce(own, "repository")
    return _of_namespace(session, base.namespace_id)


def _of_namespace(session: ReadSession, namespace_id: int) -> PolicyInForce:
    query = select(UpgradeRule.policy).where(UpgradeRule.namespace_id == namespace_id)
    found = session.scalar(query)
    return PolicyInForce(ASK, "default") if found is None else PolicyInForce(found, "namespace")

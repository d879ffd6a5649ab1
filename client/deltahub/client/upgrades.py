"""Asking the hub to upgrade a base, and deciding on the adapters that move along."""

from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from deltahub.client.api.asking import Asking, Priority, RunningJob
from deltahub.client.api.parsing import field_of, object_of, record
from deltahub.client.api.wire import LARGE_ANSWER
from deltahub.client.errors import InvalidArgument
from deltahub.client.names import namespace_name, repository_path

if TYPE_CHECKING:
    from deltahub.methods.kinds.transfer_adapter import RungName

# Upgrades in one answer, the hub's most.
_PAGE: Final = 100


@dataclass(frozen=True)
class UpgradePolicy:
    """Whether upgrades of a base are proposed and begun by themselves: ask, auto or off.

    source: whose policy it is: repository, namespace or default.
    """

    policy: str
    source: str


class Upgrades(Asking, ABC):
    """The part of `Hub` that upgrades bases."""

    def upgrade_base(
        self,
        base: str,
        *,
        from_base: str,
        policy: Literal["auto", "ask", "off"] | None = None,
        rungs: "Sequence[RungName] | None" = None,
        n: int | None = None,
        max_loss: float = 0.1,
        epochs: int | None = None,
        learning_rate: float | None = None,
        seed: int = 0,
        device: str = "auto",
        dry_run: bool = False,
        priority: Priority = "normal",
        idempotency_key: str | None = None,
    ) -> RunningJob:
        """Plan how the adapters of `from_base` move to `base`, and begin it if the policy is auto.

        The job's result names the `upgrade`, which the methods below show, decide on and put back.
        `deltahub.methods.kinds.bases.upgrade_base` describes the arguments.
        """
        arguments = {
            "base": base,
            "from_base": from_base,
            "policy": policy,
            "rungs": None if rungs is None else list(rungs),
            "n": n,
            "max_loss": max_loss,
            "epochs": epochs,
            "learning_rate": learning_rate,
            "seed": seed,
            "device": device,
            "dry_run": dry_run,
        }
        return self.ask(
            "upgrade_base", arguments, priority=priority, idempotency_key=idempotency_key
        )

    def upgrades(
        self, *, base: str | None = None, state: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Upgrades whose bases you may read, newest first, page by page.

        base: only those from or to this one. state: proposed, running, done, put_back or rejected.
        """
        before: int | None = None
        while True:
            query = {"base": base, "state": state, "before": before, "limit": _PAGE}
            answer = self._api.transport.call(
                "GET", "/v1/upgrades", query=query, limit=LARGE_ANSWER
            )
            items = field_of(answer.read(object_of), "items", tuple[dict[str, Any], ...])
            yield from items
            if len(items) < _PAGE:
                return
            before = field_of(items[-1], "id", int)

    def upgrade(self, upgrade_id: int) -> dict[str, Any]:
        """One upgrade, with the plan of each adapter that you may read, and what became of it."""
        answer = self._api.transport.call(
            "GET", f"/v1/upgrades/{int(upgrade_id)}", limit=LARGE_ANSWER
        )
        return answer.read(object_of)

    def approve_upgrade(
        self,
        upgrade_id: int,
        adapters: Sequence[str] | None = None,
        *,
        prompts: Sequence[str] | None = None,
        template: str | None = None,
        max_new_tokens: int | None = None,
    ) -> dict[str, Any]:
        """Let adapters move: those that are named, or all that are proposed and can move.

        An adapter that is named is tried again if its move failed, or was rejected or put back.
        prompts, template, max_new_tokens: as in `transfer_adapter`, for one adapter without a kit.
        """
        if prompts is not None and any(len(each.splitlines()) > 1 for each in prompts):
            raise InvalidArgument("a prompt has a line break: give inputs of one line")
        task = {
            "prompts": None if prompts is None else "\n".join(prompts),
            "template": template,
            "max_new_tokens": max_new_tokens,
        }
        return self._decide(upgrade_id, "approve", adapters, **task)

    def reject_upgrade(
        self, upgrade_id: int, adapters: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Leave adapters on their old base: those that are named, or all that have not begun."""
        return self._decide(upgrade_id, "reject", adapters)

    def put_back_upgrade(self, upgrade_id: int) -> dict[str, Any]:
        """Stop the moves of an upgrade, and delete what they made, unless somebody changed it.

        Returns `deleted`, `cancelled`, and `kept` with the reasons.
        """
        path = f"/v1/upgrades/{int(upgrade_id)}/put-back"
        return self._api.transport.call("POST", path, limit=LARGE_ANSWER).read(object_of)

    def upgrade_policy(self, target: str) -> UpgradePolicy:
        """Whether upgrades of `namespace/name`, or of a namespace's bases, are proposed."""
        answer = self._api.transport.call("GET", _policy_path(target))
        return answer.read(partial(record, UpgradePolicy))

    def set_upgrade_policy(self, target: str, policy: str) -> None:
        """Say whether upgrades of `namespace` or `namespace/name` are proposed: ask, auto, off.

        inherit: it has no policy of its own any more.
        """
        self._api.transport.call("PUT", _policy_path(target), json_body={"policy": policy})

    def _decide(
        self, upgrade_id: int, what: str, adapters: Sequence[str] | None, **more: Any
    ) -> dict[str, Any]:
        body = {"adapters": None if adapters is None else list(adapters), **more}
        path = f"/v1/upgrades/{int(upgrade_id)}/{what}"
        answer = self._api.transport.call("POST", path, json_body=body, limit=LARGE_ANSWER)
        return answer.read(object_of)


def _policy_path(target: str) -> str:
    if "/" in target:
        return f"{repository_path(target)}/upgrades/policy"
    return f"/v1/namespaces/{namespace_name(target)}/upgrades/policy"

"""Asking the hub for init kits of adapters, and for conversions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deltahub.client.api.asking import Priority, RunningJob
from deltahub.client.api.parsing import object_of, record
from deltahub.client.api.transport import LONG_TIMEOUT_S
from deltahub.client.api.wire import LARGE_ANSWER
from deltahub.client.errors import InvalidArgument
from deltahub.client.names import named_revision, namespace_name, repository_path
from deltahub.client.upgrades import Upgrades

if TYPE_CHECKING:
    from deltahub.methods.adapters.comparison import AdapterComparison
    from deltahub.methods.adapters.factors import Factors
    from deltahub.methods.kinds.bases.pissa_init import FactorDtype
    from deltahub.methods.kinds.transfer_adapter import RungName


@dataclass(frozen=True)
class ConversionRule:
    """Whether adapters that changed their base are converted: ask, auto or off.

    source: whose rule it is: repository, namespace or default.
    """

    convert: str
    source: str


@dataclass(frozen=True)
class KitFacts:
    """What the hub tells of a kit to those who may write to its adapter.

    name: of the private dataset. base: `namespace/name@commit`, None if the caller may not read it.
    n_seeds: private examples that the kit holds as they are. auc: of the discriminator, on inputs
    that it was not trained on. is_current: main has the weights that the kit was made for. size: of
    the discriminator, in bytes.
    """

    name: str
    base: str | None
    n_examples: int
    n_seeds: int
    source_accuracy: float | None
    n_tests: int
    auc: float
    auc_error: float
    has_sketch: bool
    is_current: bool
    size: int
    created_at: str


class Adapters(Upgrades, ABC):
    """The part of `Hub` that looks at adapters, and asks for jobs about them."""

    @abstractmethod
    def pull(self, name: str, *, revision: str = "main") -> Path:
        """The local folder of a revision."""

    def adapter_report(self, name: str, revision: str = "main") -> dict[str, Any]:
        """What the hub found out about an adapter (docs/adapters.md).

        EntryNotFound if the revision is no adapter, or waits for its ingest.
        """
        path = f"{repository_path(name)}/adapter"
        answer = self._api.transport.call(
            "GET", path, query={"revision": revision}, limit=LARGE_ANSWER
        )
        return answer.read(object_of)

    def compare_adapters(self, first: str, second: str) -> "AdapterComparison":
        """How alike two plain LoRA adapters are: `namespace/name[@revision]` each, or a folder.

        InvalidArgument if one is no plain LoRA, or they change no module of one name and shape.
        """
        from deltahub.client.local.adapters import factors_of
        from deltahub.methods.adapters.comparison import compare_adapters

        def load(target: str) -> "tuple[str, dict[str, Factors]]":
            if Path(target).is_dir():
                return target, factors_of(Path(target))
            name, revision = named_revision(target)
            return target, factors_of(self.pull(name, revision=revision or "main"))

        try:
            return compare_adapters(load(first), load(second))
        except ValueError as exc:
            raise InvalidArgument(f"{first} and {second} cannot be compared: {exc}") from exc

    def conversion_rule(self, target: str) -> ConversionRule:
        """Whether adapters of `namespace` or `namespace/name` are converted, and by whose rule."""
        answer = self._api.transport.call("GET", _rule_path(target))
        return answer.read(partial(record, ConversionRule))

    def set_conversion_rule(self, target: str, convert: str) -> None:
        """Say whether adapters of `namespace` or `namespace/name` are converted: ask, auto, off;
        inherit removes the rule, so that the namespace's counts, or the default.
        """
        self._api.transport.call("PUT", _rule_path(target), json_body={"convert": convert})

    def push_kit(self, folder: str | Path, name: str) -> KitFacts:
        """Store the kit of a folder for the adapter `namespace/name`, in place of the one before.

        The hub's own jobs alone read it. InvalidArgument if the folder has no kit; InvalidRequest
        or Conflict if it is for another base, or for other weights than the adapter has now.
        """
        from deltahub.client.local.kits import read_kit

        body = read_kit(Path(folder)).body()
        self._api.transport.call("PUT", _kit_path(name), body=body, timeout_s=LONG_TIMEOUT_S)
        return self.kit(name)

    def kit(self, name: str) -> KitFacts:
        """What is known of an adapter's kit. EntryNotFound if there is none; Forbidden for those
        who may not write to the adapter.
        """
        return self._api.transport.call("GET", _kit_path(name)).read(partial(record, KitFacts))

    def delete_kit(self, name: str) -> None:
        """Delete an adapter's kit. EntryNotFound if there is none."""
        self._api.transport.call("DELETE", _kit_path(name))

    def pissa_init(
        self,
        base: str,
        *,
        name: str | None = None,
        rank: int = 16,
        alpha: float | None = None,
        targets: Sequence[str] | None = None,
        niter: int = 8,
        exact: bool = False,
        dtype: "FactorDtype" = "F32",
        quant: Literal["nf4"] | None = None,
        iters: int = 5,
        seed: int = 0,
        private: bool | None = None,
        dry_run: bool = False,
        priority: Priority = "normal",
        idempotency_key: str | None = None,
    ) -> RunningJob:
        """Make an init kit: the factors that PiSSA adapters of `base` start from.

        A kit that was made before is found again. `deltahub.client.transfer.pissa_model` loads a
        base with its kit. `deltahub.methods.kinds.bases.pissa_init` describes the arguments.
        """
        arguments = {
            "base": base,
            "name": name,
            "rank": rank,
            "alpha": alpha,
            "targets": None if targets is None else list(targets),
            "niter": niter,
            "exact": exact,
            "dtype": dtype,
            "quant": quant,
            "iters": iters,
            "seed": seed,
            "private": private,
            "dry_run": dry_run,
        }
        return self.ask("pissa_init", arguments, priority=priority, idempotency_key=idempotency_key)

    def convert_adapter(
        self,
        adapter: str,
        *,
        base: str | None = None,
        init: str | None = None,
        rank: int | None = None,
        error: float | None = None,
        dtype: "FactorDtype" = "F32",
        dry_run: bool = False,
        priority: Priority = "normal",
        idempotency_key: str | None = None,
    ) -> RunningJob:
        """Make a plain LoRA of an adapter that changed its base: a new commit on its main.

        `deltahub.methods.kinds.convert_adapter` describes the arguments.
        """
        arguments = {
            "adapter": adapter,
            "base": base,
            "init": init,
            "rank": rank,
            "error": error,
            "dtype": dtype,
            "dry_run": dry_run,
        }
        return self.ask(
            "convert_adapter", arguments, priority=priority, idempotency_key=idempotency_key
        )

    def extract_adapter(
        self,
        model: str,
        name: str,
        *,
        base: str | None = None,
        rank: int | None = None,
        error: float | None = None,
        targets: Sequence[str] | None = None,
        dtype: "FactorDtype" = "F32",
        private: bool | None = None,
        dry_run: bool = False,
        priority: Priority = "normal",
        idempotency_key: str | None = None,
    ) -> RunningJob:
        """Make a LoRA in the new repository `name` of what a full fine-tune changed.

        `deltahub.methods.kinds.extract_adapter` describes the arguments.
        """
        arguments = {
            "model": model,
            "name": name,
            "base": base,
            "rank": rank,
            "error": error,
            "targets": None if targets is None else list(targets),
            "dtype": dtype,
            "private": private,
            "dry_run": dry_run,
        }
        return self.ask(
            "extract_adapter", arguments, priority=priority, idempotency_key=idempotency_key
        )

    def merge_adapter(
        self,
        adapter: str,
        *,
        base: str | None = None,
        dry_run: bool = False,
        priority: Priority = "normal",
        idempotency_key: str | None = None,
    ) -> RunningJob:
        """Offer an adapter as a full model on the branch `merged` of its repository."""
        arguments = {"adapter": adapter, "base": base, "dry_run": dry_run}
        return self.ask(
            "merge_adapter", arguments, priority=priority, idempotency_key=idempotency_key
        )

    def transfer_adapter(
        self,
        adapter: str,
        base: str,
        name: str,
        *,
        source_base: str | None = None,
        rungs: "Sequence[RungName] | None" = None,
        pool: Sequence[str] | None = None,
        prompts: Sequence[str] | None = None,
        template: str = "{input}",
        max_new_tokens: int = 64,
        student: Literal["lora", "dora"] | None = None,
        rank: int | None = None,
        start: Literal["auto", "fresh"] = "auto",
        epochs: int | None = None,
        learning_rate: float | None = None,
        n: int | None = None,
        budget: int = 20,
        max_loss: float = 0.1,
        compressed: bool | None = None,
        seed: int = 0,
        private: bool | None = None,
        device: str = "auto",
        dry_run: bool = False,
        priority: Priority = "normal",
        idempotency_key: str | None = None,
    ) -> RunningJob:
        """Move an adapter to another base, into the new repository `name` if it does well there.

        prompts: inputs of the task without line breaks, for an adapter without a kit.
        `deltahub.methods.kinds.transfer_adapter` describes the arguments. The job's result says
        whether the adapter was `published`, or why it stays on its old base.
        """
        if prompts is not None and any(len(each.splitlines()) > 1 for each in prompts):
            raise InvalidArgument("a prompt has a line break: give inputs of one line")
        arguments = {
            "adapter": adapter,
            "base": base,
            "name": name,
            "source_base": source_base,
            "rungs": None if rungs is None else list(rungs),
            "pool": None if pool is None else list(pool),
            "prompts": None if prompts is None else "\n".join(prompts),
            "template": template,
            "max_new_tokens": max_new_tokens,
            "student": student,
            "rank": rank,
            "start": start,
            "epochs": epochs,
            "learning_rate": learning_rate,
            "n": n,
            "budget": budget,
            "max_loss": max_loss,
            "compressed": compressed,
            "seed": seed,
            "private": private,
            "device": device,
            "dry_run": dry_run,
        }
        return self.ask(
            "transfer_adapter", arguments, priority=priority, idempotency_key=idempotency_key
        )


def _kit_path(name: str) -> str:
    return f"{repository_path(name)}/adapter/kit"


def _rule_path(target: str) -> str:
    if "/" in target:
        return f"{repository_path(target)}/adapter/rule"
    return f"/v1/namespaces/{namespace_name(target)}/adapter/rule"

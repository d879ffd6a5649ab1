"""Asking the hub for init kits of adapters, and for conversions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deltahub.client.api.asking import Asking, Priority, RunningJob
from deltahub.client.api.parsing import object_of
from deltahub.client.api.wire import LARGE_ANSWER
from deltahub.client.errors import InvalidArgument
from deltahub.client.names import named_revision, namespace_name, repository_path

if TYPE_CHECKING:
    from deltahub.methods.adapters.comparison import AdapterComparison
    from deltahub.methods.adapters.factors import Factors
    from deltahub.methods.kinds.pissa_init import FactorDtype


class Adapters(Asking, ABC):
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

    def set_conversion_rule(self, target: str, convert: str) -> None:
        """Say whether adapters of `namespace` or `namespace/name` are converted: ask, auto, off."""
        if "/" in target:
            path = f"{repository_path(target)}/adapter/rule"
        else:
            path = f"/v1/namespaces/{namespace_name(target)}/adapter/rule"
        self._api.transport.call("PUT", path, json_body={"convert": convert})

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
        base with its kit. `deltahub.methods.kinds.pissa_init` describes the arguments.
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

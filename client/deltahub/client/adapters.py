"""Asking the hub for init kits of adapters, and for conversions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from deltahub.client.api.asking import Asking, Priority, RunningJob

if TYPE_CHECKING:
    from deltahub.methods.kinds.pissa_init import FactorDtype


class Adapters(Asking):
    """The part of `Hub` that asks for jobs about adapters."""

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

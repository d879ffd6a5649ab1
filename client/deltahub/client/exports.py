"""Asking the hub for exports whose weights stay compressed in memory."""

from abc import ABC
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deltahub.client.api.asking import Asking, Priority, RunningJob

if TYPE_CHECKING:
    from deltahub.methods.kinds.export_neuzip import ExportBits, ExportMethod


class Exports(Asking, ABC):
    """The part of `Hub` that asks for exports."""

    def export_neuzip(
        self,
        model: str,
        name: str,
        *,
        bits: "ExportBits | int" = "7",
        method: "ExportMethod" = "neuzip",
        lossless: bool = False,
        budget: float | None = None,
        block: int = 0,
        also: Sequence[int] | int | None = None,
        keep: Sequence[str] | str | None = None,
        text: str | None = None,
        private: bool | None = None,
        dry_run: bool = False,
        priority: Priority = "normal",
        idempotency_key: str | None = None,
    ) -> RunningJob:
        """Make the new repository `name` of a model's weights, which `inference.load` reads.

        `deltahub.methods.kinds.export_neuzip` describes the arguments.
        """
        arguments = {
            "model": model,
            "name": name,
            "bits": str(bits),
            "method": method,
            "lossless": lossless,
            "budget": budget,
            "block": block,
            "also": [also] if isinstance(also, int) else also and list(also),
            "keep": [keep] if isinstance(keep, str) else keep and list(keep),
            "text": text,
            "private": private,
            "dry_run": dry_run,
        }
        return self.ask(
            "export_neuzip", arguments, priority=priority, idempotency_key=idempotency_key
        )

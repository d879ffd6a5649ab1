"""The arguments of the job `merge_adapter`."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from deltahub.methods.errors import CannotAdapt
from deltahub.methods.kinds.kind import JobArguments, KnownModel, RevisionName


class MergeAdapterArguments(JobArguments):
    """Offer an adapter as a full model: its base with it merged in, as the branch `merged`.

    For clients that know no adapters. The branch costs little: it is stored as differences from
    the base.
    """

    kind: ClassVar[str] = "merge_adapter"
    steps_version: ClassVar[int] = 1

    adapter: RevisionName = Field(description="The adapter, a plain LoRA.")
    base: RevisionName | None = Field(
        default=None,
        description="The model that it belongs to; by default the base that it names.",
    )

    def inputs(self) -> tuple[str, ...]:
        return (self.adapter,) if self.base is None else (self.adapter, self.base)

    def check(self, models: Sequence[KnownModel]) -> None:
        adapter = models[0]
        if not adapter.is_adapter:
            raise CannotAdapt(f"{adapter.title} is no adapter: it is a full model already")
        adapter.require_head()
        base = models[1] if self.base is not None else adapter.require_base()
        adapter.refuse_hidden_base(base)
        report = adapter.report
        if report is None:
            return
        if report["state"] in ("quarantined", "broken"):
            faults = "; ".join(report["faults"]) or report["why"]
            raise CannotAdapt(
                f"{adapter.title} is {report['state']}: {faults}. {report['way_out']}"
            )
        if report["state"] == "convertible":
            raise CannotAdapt(
                f"{adapter.title} was started by {report['init']}, which changed its base: convert"
                f" it to a plain LoRA first (deltahub adapter convert {adapter.name})"
            )

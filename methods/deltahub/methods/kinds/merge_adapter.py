"""The arguments of the job `merge_adapter`."""

from typing import ClassVar

from pydantic import Field

from deltahub.methods.kinds.kind import JobArguments, RevisionName


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

"""The arguments of the job `compare`."""

from typing import ClassVar

from pydantic import Field

from deltahub.methods.kinds.kind import JobArguments, RevisionName


class CompareArguments(JobArguments):
    """Compare two models, tensor by tensor: how much changed, where, and in how many directions."""

    kind: ClassVar[str] = "compare"
    steps_version: ClassVar[int] = 1
    only_reads: ClassVar[bool] = True

    first: RevisionName = Field(description="The model that changes are counted from.")
    second: RevisionName = Field(description="The other model, or another revision of the first.")

    def inputs(self) -> tuple[str, ...]:
        return (self.first, self.second)

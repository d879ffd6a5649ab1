"""What a merge will cost, said before it starts."""

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.sizes import human_size


class Estimate(BaseModel):
    """Bytes are encoded bytes in the hub's store, without the base's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    n_tasks: int
    merged_bytes: int = Field(description="The base's tensors that are merged, as they are.")
    fine_tunes_bytes: int = Field(description="All fine-tunes as the hub stores them now.")
    main_bytes: int = Field(description="The branch main, by a sample.")
    branches_bytes: int = Field(description="The branches of all tasks, by a sample.")
    lossy_bytes: int | None = Field(
        default=None, description="What the branches would take if they were not exact."
    )
    read_bytes: int = Field(description="Bytes of tensors that the job reads in all.")
    memory_bytes: int = Field(description="Memory that the job takes at most.")
    seconds: float = Field(description="How long the job takes, roughly.")

    @property
    def merge_bytes(self) -> int:
        return self.main_bytes + self.branches_bytes

    def sentences(self) -> list[str]:
        """What a person should know before the merge starts, the bytes first."""
        now, then = human_size(self.fine_tunes_bytes), human_size(self.merge_bytes)
        if self.method == "lossless":
            return [
                f"the {self.n_tasks} fine-tunes take {now} now, as lossless deltas; the branches"
                " are these fine-tunes, and share their deltas: nothing is added while they are"
                " there",
                self._effort(),
            ]
        lines = [
            f"the {self.n_tasks} fine-tunes take {now} now, as lossless deltas;"
            f" the merge ({self.method}) will take about {then}: {human_size(self.main_bytes)} for"
            f" main and {human_size(self.branches_bytes)} for the branches"
        ]
        if self.lossy_bytes is not None:
            lines.append(
                "the branches are exact: they share their deltas with the fine-tunes while these"
                f" are there; as masks they would take {human_size(self.lossy_bytes)}"
            )
        elif self.merge_bytes > self.fine_tunes_bytes:
            lines.append(
                "the merge is larger than the fine-tunes, which are exact: merge for a model that"
                " serves many tasks from one copy in memory, not to save space in the hub"
            )
        return [*lines, self._effort()]

    def _effort(self) -> str:
        return (
            f"it reads {human_size(self.read_bytes)} in about {self.seconds:.0f} s, in at most"
            f" {human_size(self.memory_bytes)} of memory"
        )

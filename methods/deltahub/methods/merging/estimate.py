"""What a merge will cost, said before it starts."""

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.merging.report import human_size


class Estimate(BaseModel):
    """Bytes are encoded bytes in the hub's store, without the base's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_tasks: int
    merged_bytes: int = Field(description="The base's tensors that are merged, as they are.")
    fine_tunes_bytes: int = Field(description="All fine-tunes as the hub stores them now.")
    unified_bytes: int = Field(description="The unified model, by a sample.")
    masks_bytes: int = Field(description="The masks of all tasks, by a sample.")
    read_bytes: int = Field(description="Bytes of tensors that the job reads in all.")
    memory_bytes: int = Field(description="Memory that the job takes at most.")
    seconds: float = Field(description="How long the job takes, roughly.")

    @property
    def merge_bytes(self) -> int:
        return self.unified_bytes + self.masks_bytes

    def sentences(self) -> list[str]:
        """What a person should know before the merge starts, the bytes first."""
        now, then = human_size(self.fine_tunes_bytes), human_size(self.merge_bytes)
        lines = [
            f"the {self.n_tasks} fine-tunes take {now} now, as lossless deltas;"
            f" the merge will take about {then}: {human_size(self.unified_bytes)} for the unified"
            f" model and {human_size(self.masks_bytes)} for the masks"
        ]
        if self.merge_bytes > self.fine_tunes_bytes:
            lines.append(
                "the merge is larger than the fine-tunes, which are exact: merge for a model that"
                " serves many tasks from one copy in memory, not to save space in the hub"
            )
        lines.append(
            f"it reads {human_size(self.read_bytes)} in about {self.seconds:.0f} s, in at most"
            f" {human_size(self.memory_bytes)} of memory"
        )
        return lines

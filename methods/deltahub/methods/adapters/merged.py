"""What it costs to offer an adapter as a full model, said before it starts."""

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.sizes import human_size


class MergedEstimate(BaseModel):
    """adapter, base: as namespace/name@commit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    adapter: str
    base: str
    n_changed: int = Field(description="Tensors of the base that the adapter changes.")
    changed_bytes: int = Field(description="Bytes of these tensors.")
    model_bytes: int = Field(description="Bytes of the merged model's files, as they are pulled.")
    memory_bytes: int = Field(description="Memory that the job takes at most.")
    seconds: float = Field(description="How long the job takes, roughly.")

    def sentences(self) -> list[str]:
        """What a person should know before it starts."""
        tensors = "1 tensor" if self.n_changed == 1 else f"{self.n_changed:,} tensors"
        return [
            f"{self.adapter} changes {tensors} of {self.base}, {human_size(self.changed_bytes)} of"
            f" its {human_size(self.model_bytes)}; the branch stores them as differences",
            f"it takes about {max(self.seconds, 1):.0f} s and at most"
            f" {human_size(self.memory_bytes)} of memory",
        ]

"""How an adapter is trained, with the paper's values as defaults."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Recipe(BaseModel):
    """Of a discriminator or of a student.

    Trans-LoRA (arXiv 2405.17258), section 4: PEFT's default LoRA, which is rank 8 on the query and
    value projections; AdamW without weight decay, a linear schedule without warm-up, batches of 8,
    20 epochs, and a learning rate of 2e-5 (for MMLU 2e-4). The clipped norm of gradients is ours:
    without it, students of small models are unstable.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["lora", "dora"] = Field(
        default="lora", description="DoRA also learns the length of each row of the weight."
    )
    rank: int = Field(default=8, ge=1, le=4_096)
    alpha: float = Field(default=8, gt=0, le=1e6)
    targets: tuple[str, ...] | None = Field(
        default=None,
        max_length=64,
        description="The last part of the names of the adapted modules; by default those that PEFT"
        " adapts in models of this architecture (query and value in a Llama).",
    )
    learning_rate: float = Field(default=2e-5, gt=0, le=1)
    epochs: int = Field(default=20, ge=1, le=1_000)
    batch_size: int = Field(default=8, ge=1, le=1_024)
    warmup_share: float = Field(
        default=0.0, ge=0, lt=1, description="Share of the steps in which the rate still grows."
    )
    clip_norm: float = Field(default=1.0, gt=0)
    seed: int = Field(default=0, ge=0, le=2**32 - 1)

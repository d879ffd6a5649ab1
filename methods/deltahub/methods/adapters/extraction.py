"""A LoRA that stands for a full fine-tune: truncated decompositions of what it changed."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.adapters.factors import Values

# Ranks beyond this are not tried for an error.
MAX_RANK: Final = 1024
REPORT_FILE: Final = "extraction.json"


class ExtractionReport(BaseModel):
    """extraction.json, beside an extracted adapter. Errors are relative, of Frobenius norms."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    model: str = Field(description="The fine-tune, as namespace/name@commit.")
    base: str = Field(description="The base, as namespace/name@commit.")
    rank: int
    dtype: str
    n_modules: int
    error: float = Field(description="Of all matrices that the adapter changes, together.")
    whole_error: float = Field(description="Of all that the fine-tune changed.")
    left_out: tuple[str, ...] = Field(
        description="Tensors that the fine-tune changed and the adapter does not."
    )

    def sentences(self) -> list[str]:
        """What a person wants to know."""
        lines = [
            f"a LoRA of rank {self.rank} in {self.dtype} for {self.n_modules} matrices of"
            f" {self.base}: within {self.error:.2%} of what {self.model} changed there"
        ]
        if self.left_out:
            lines.append(
                f"{len(self.left_out)} tensors that the fine-tune changed are not in it, such as"
                f" {self.left_out[0]}: of all changes together, {self.whole_error:.2%} is lost"
            )
        return lines

    def card(self, name: str) -> str:
        """The model card."""
        lines = "\n".join(f"- {line}" for line in self.sentences())
        base = self.base.partition("@")[0]
        return (
            f"---\nbase_model: {base}\nbase_model_relation: adapter\nlibrary_name: peft\n"
            f"tags:\n- lora\n---\n# {name}\n\nExtracted from `{self.model}`.\n\n{lines}\n"
        )


def tails(values: Values) -> list[float]:
    """What is lost at each rank 0, 1, ..., MAX_RANK: sums of squared singular values."""
    squares = values**2
    left_out = np.append(np.cumsum(squares[::-1])[::-1], 0.0)
    return [float(each) for each in left_out[: MAX_RANK + 1]]


def rank_within(lost: Sequence[Sequence[float]], error: float) -> int | None:
    """The smallest rank at which all matrices together are within the error. lost: `tails` of each.

    None if no rank up to MAX_RANK is enough.
    """
    total = sum(each[0] for each in lost)
    for rank in range(1, MAX_RANK + 1):
        left = sum(each[rank] if rank < len(each) else 0.0 for each in lost)
        if left <= error**2 * total:
            return rank
    return None

"""The report of a comparison: what it says of the whole models, in numbers and in sentences."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.comparing.modules import relative_change

Status = Literal["same", "changed", "reshaped", "only_first", "only_second"]
# Names of the tensors that changed most.
N_LARGEST: Final = 5


class Totals(BaseModel):
    """Of all tensors of both models. Elements count where both have the tensor in one shape."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    n_tensors: int = Field(description="Names of tensors, of both models together.")
    n_same: int = Field(description="Tensors that are the same, bit by bit.")
    n_changed: int
    n_reshaped: int = Field(description="Tensors of one name and two shapes.")
    n_only_first: int
    n_only_second: int
    elements: int
    same_elements: int = Field(description="Elements that are identical, bit by bit.")
    relative: float | None = Field(description="||B - A|| / ||A|| of the changed tensors.")
    largest: float | None = Field(description="The largest absolute difference of an element.")
    n_matrices: int = Field(description="Changed matrices, whose rank was estimated.")
    rank_median: int | None = Field(
        description="Of their ranks at 90 % of the energy; null above rank_limit."
    )
    rank_limit: int | None = Field(description="The largest rank that is told apart.")
    most_changed: list[str] = Field(description="Tensors with the largest relative change.")

    def sentences(self) -> list[str]:
        """What a person should know first."""
        lines = [self._tensors()]
        if self.elements:
            lines.append(
                f"{self.same_elements / self.elements:.2%} of the {self.elements:,} weights in"
                " both are identical, bit by bit"
            )
        if self.relative is not None and self.n_changed:
            lines.append(
                f"the changed tensors moved by {self.relative:.3g} of their norm; the largest"
                f" difference of one weight is {self.largest or 0:.3g}"
            )
        if self.n_matrices:
            above = f"more than {self.rank_limit}"
            rank = above if self.rank_median is None else str(self.rank_median)
            lines.append(
                f"the median rank of a matrix's difference is {rank}: so many directions hold"
                " 90 % of its energy"
            )
        return lines

    def _tensors(self) -> str:
        parts = [
            f"{n} {what}"
            for n, what in (
                (self.n_same, "are the same"),
                (self.n_changed, "changed"),
                (self.n_reshaped, "have another shape"),
                (self.n_only_first, "are only in the first model"),
                (self.n_only_second, "are only in the second model"),
            )
            if n
        ]
        return f"of {self.n_tensors} tensors, {', '.join(parts)}"


def totals_of(tensors: Sequence[Mapping[str, Any]]) -> Totals:
    """The totals of all tensors, as the report has them."""
    by_status: dict[str, list[Mapping[str, Any]]] = {}
    for each in tensors:
        by_status.setdefault(each["status"], []).append(each)
    changed = by_status.get("changed", [])
    both = [*by_status.get("same", []), *changed]
    ranked = [each for each in changed if each["rank_limit"] is not None]
    # An unknown rank is larger than all known ones.
    ranks = sorted(each["rank_90"] or each["rank_limit"] + 1 for each in ranked)
    limit = max((each["rank_limit"] for each in ranked), default=None)
    median = ranks[len(ranks) // 2] if ranks else None
    order = sorted(changed, key=lambda each: (-(each["relative"] or 0.0), each["name"]))
    return Totals(
        n_tensors=len(tensors),
        n_same=len(by_status.get("same", [])),
        n_changed=len(changed),
        n_reshaped=len(by_status.get("reshaped", [])),
        n_only_first=len(by_status.get("only_first", [])),
        n_only_second=len(by_status.get("only_second", [])),
        elements=sum(each["count"] for each in both),
        same_elements=sum(each["n_same"] for each in both),
        relative=relative_change(changed),
        largest=max((each["largest"] for each in changed if each["largest"] is not None),
                    default=None),
        n_matrices=len(ranked),
        rank_median=None if median is None or limit is None or median > limit else median,
        rank_limit=limit,
        most_changed=[each["name"] for each in order[:N_LARGEST]],
    )  # fmt: skip


class ComparingEstimate(BaseModel):
    """What a comparison will cost, said before it starts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_tensors: int
    n_read: int = Field(description="Tensors that differ, which the job reads.")
    read_bytes: int = Field(description="Bytes of these tensors, of both models.")
    seconds: float = Field(description="How long the job takes, roughly.")

    def sentences(self) -> list[str]:
        size = f"{self.read_bytes / 1e6:,.1f} MB"
        return [
            f"{self.n_read} of {self.n_tensors} tensors differ: the comparison reads {size} in"
            f" about {max(self.seconds, 1):.0f} s, and stores no model"
        ]

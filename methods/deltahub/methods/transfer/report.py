"""The report of a move: what was tried, how well each way did, and what was decided."""

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.transfer.measures.agreement import Disagreement, Fit, Flips, recovery
from deltahub.methods.transfer.measures.discrimination import DiscriminatorReport
from deltahub.methods.transfer.measures.gate import Decision, Rung
from deltahub.methods.transfer.measures.intervals import Share
from deltahub.methods.transfer.rejection import SamplingReport
from deltahub.methods.transfer.rungs.copying import Likeness

REPORT_FILE: Final = "transfer.json"


class Cost(BaseModel):
    """What one way took."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: float = Field(ge=0)
    peak_bytes: int | None = Field(default=None, ge=0, description="Of memory.")
    device: str = "cpu"


class RungReport(BaseModel):
    """How one way did on the held-out inputs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rung: Rung
    agreed: Share | None = Field(
        default=None, description="With the teacher's answers; null if the way does not apply."
    )
    start: Rung | None = Field(
        default=None,
        description="Of a trained adapter: the way whose result it began as; null if it began as"
        " one that changes nothing.",
    )
    fit: Fit | None = Field(default=None, description="Of the teacher's completions.")
    flips: Flips | None = Field(
        default=None,
        description="Against the new base alone, where the teacher's answers count as right.",
    )
    labelled_flips: Flips | None = Field(
        default=None, description="Against the teacher, where the right answers are known."
    )
    cost: Cost | None = None
    why_not: str | None = Field(default=None, description="Why the way does not apply.")

    def sentence(self) -> str:
        if self.agreed is None:
            return f"{self.rung.value}: not possible, because {self.why_not or 'it was not tried'}"
        name = self.rung.value
        if self.start is not None:
            name += f" (its training began with {self.start.value})"
        text = f"{name}: agrees with the old adapter in {self.agreed}"
        if self.flips is not None:
            text += (
                f"; of {self.flips.n} answers it repairs {self.flips.positive} of the new base and"
                f" breaks {self.flips.negative}"
            )
        if self.labelled_flips is not None:
            text += (
                f"; {self.labelled_flips.negative_rate:.1%} of answers were right before and are"
                f" wrong now, {self.labelled_flips.positive_rate:.1%} the other way round"
            )
        return text + (f"; {self.cost.seconds:.0f} s" if self.cost is not None else "")


class Distances(BaseModel):
    """Squared discrepancies of embeddings by the source base; a filter that works makes them
    smaller.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    gamma: float = Field(gt=0)
    unfiltered_to_private: float | None = Field(
        default=None, description="From the kit's sketch; null without one."
    )
    filtered_to_private: float | None = None
    noise_error: float | None = Field(
        default=None,
        description="Standard deviation that the sketch's noise gives the difference of both.",
    )
    filtered_to_unfiltered: float


class Provenance(BaseModel):
    """What a result was made from. Ids are commits and SHA-256."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    adapter: str = Field(description="The teacher: the adapter that was trained on private data.")
    source_base: str
    target_base: str
    discriminator_sha256: str | None = None
    seed: int = Field(description="Of all random numbers.")
    hops: tuple[str, ...] = Field(
        default=(),
        description="Bases that the adapter was moved to before. Each move starts from the teacher,"
        " so that errors do not add up.",
    )

    def to(self, base: str) -> "Provenance":
        """Of the next move, to a newer base: with the same teacher and discriminator."""
        return self.model_copy(update={"target_base": base, "hops": (*self.hops, self.target_base)})


def _short(title: str) -> str:
    """`namespace/name@commit` with as much of the commit as a person compares."""
    name, at, commit = title.partition("@")
    return f"{name}{at}{commit[:12]}"


class TransferReport(BaseModel):
    """transfer.json of a result."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    provenance: Provenance
    base_agreed: Share = Field(description="Of the new base alone with the teacher.")
    source_accuracy: float | None = Field(default=None, ge=0, le=1)
    rungs: tuple[RungReport, ...]
    chosen: Rung
    decision: Decision
    sampling: SamplingReport | None = None
    discriminator: DiscriminatorReport | None = None
    distances: Distances | None = None
    likeness: Likeness | None = None
    disagreements: tuple[Disagreement, ...] = Field(default=(), max_length=50)
    summary: tuple[str, ...] = Field(
        default=(), description="All of it in sentences, for those who only show it."
    )

    def rung(self, rung: Rung) -> RungReport | None:
        """What was measured of one way."""
        return next((each for each in self.rungs if each.rung is rung), None)

    @property
    def recovery(self) -> float | None:
        """Of the chosen way: 0 is the new base alone, 1 always the teacher's answer."""
        found = self.rung(self.chosen)
        if found is None or found.agreed is None:
            return None
        return recovery(found.agreed.value, self.base_agreed.value)

    def sentences(self) -> list[str]:
        """What a person should know, the decision first."""
        source = self.provenance
        moved = f"{_short(source.adapter)} to {_short(source.target_base)}"
        if self.decision.is_published:
            lines = [f"moved {moved} by {self.chosen.value}"]
        else:
            lines = [f"did not move {moved}: it stays on {_short(source.source_base)}"]
        lines += self.decision.reasons
        caution = self.base_agreed.caution()
        if caution is not None:
            lines.append(f"{caution}: ask for more inputs (n) before you rely on it")
        promise = self.decision.promise
        if self.decision.is_published and promise is not None and self.source_accuracy is not None:
            lines.append(
                f"on inputs like the held-out ones, its accuracy is at least {promise:.1%}, at"
                f" 95 %: the old adapter's {self.source_accuracy:.1%}, as its private tests have"
                " measured it, less the share of answers in which both may differ"
            )
        if self.recovery is not None:
            lines.append(f"it recovers {self.recovery:.1%} of what the new base alone lacks")
        lines += [each.sentence() for each in self.rungs]
        for part in (self.likeness, self.sampling, self.discriminator):
            lines += part.sentences() if part is not None else []
        if self.distances is not None:
            lines.append(self._distances_sentence(self.distances))
        if self.disagreements:
            n = len(self.disagreements)
            listed = "1 disagreement is" if n == 1 else f"{n} disagreements are"
            lines.append(f"{listed} listed for a person to read")
        return lines

    @staticmethod
    def _distances_sentence(distances: Distances) -> str:
        before, after = distances.unfiltered_to_private, distances.filtered_to_private
        if before is None or after is None:
            return (
                f"the filter moved the inputs by a squared MMD of"
                f" {distances.filtered_to_unfiltered:.3g}"
            )
        verdict = "nearer to" if after < before else "no nearer to"
        if abs(after - before) < 2 * (distances.noise_error or 0.0):
            return (
                "the noise of the kit's sketch hides whether the filtered inputs are nearer to the"
                f" private ones than the unfiltered ones: a squared MMD of {after:.3g}, after"
                f" {before:.3g}"
            )
        return (
            f"the filtered inputs are {verdict} the private ones than the unfiltered ones: a"
            f" squared MMD of {after:.3g}, after {before:.3g}"
        )

"""The form that moves an adapter to another base, and the page that shows what came of it."""

from typing import Annotated, Final

from pydantic import BaseModel, Field

from deltahub.methods.kinds.kind import RevisionName
from deltahub.methods.kinds.transfer_adapter import RungName

TITLE: Final = "Move an adapter"
# On main of the repository that holds the moved adapter.
REPORT_FILE: Final = "transfer.json"
_MOST: Final = 1000
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=20_000)]


class Share(BaseModel):
    """A share with its 95 % bounds."""

    n: int = Field(ge=0)
    value: _Number
    lower: _Number
    upper: _Number


class Flips(BaseModel):
    n: int
    negative: int
    positive: int


class Cost(BaseModel):
    seconds: _Number
    device: str


class Rung(BaseModel):
    """How one way did; methods/transfer/report.py says what each number means."""

    rung: RungName
    agreed: Share | None = None
    flips: Flips | None = None
    cost: Cost | None = None
    why_not: str | None = None


class Provenance(BaseModel):
    adapter: RevisionName
    source_base: RevisionName
    target_base: RevisionName


class Decision(BaseModel):
    is_published: bool
    promise: _Number | None = None
    reasons: list[_Text] = Field(max_length=_MOST)


class Report(BaseModel):
    """The parts of transfer.json that its page shows."""

    provenance: Provenance
    base_agreed: Share
    rungs: list[Rung] = Field(max_length=10)
    chosen: RungName
    decision: Decision
    summary: list[_Text] = Field(default=[], max_length=_MOST)

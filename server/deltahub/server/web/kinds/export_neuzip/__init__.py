"""The form that asks for an export, and the page that shows what is in one."""

from typing import Annotated, Final

from pydantic import BaseModel, Field

from deltahub.methods.exporting import report
from deltahub.methods.kinds.kind import RevisionName

TITLE: Final = "NeuZip export"
# On main of the repository that holds the export.
REPORT_FILE: Final = report.REPORT_FILE
_MOST: Final = 100_000
_Bytes = Annotated[int, Field(ge=0)]
_Ratio = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Weight(BaseModel):
    """One compressed weight; methods/exporting/report.py says what each number means."""

    name: str
    dtype: str
    shape: tuple[int, ...] = Field(max_length=100)
    method: str = "neuzip"
    bits: int | None
    element_bits: _Ratio | None = None
    block: int
    plain_bytes: _Bytes
    coded_bytes: _Bytes
    bound: _Ratio | None
    error: _Ratio
    largest: _Ratio
    is_special: bool = False


class Perplexity(BaseModel):
    n_tokens: int
    before: float = Field(gt=0, allow_inf_nan=False)
    after: float = Field(gt=0, allow_inf_nan=False)


class Report(BaseModel):
    """The parts of neuzip.json that its page shows."""

    model: RevisionName
    method: str = "neuzip"
    bits: str
    budget: float | None = Field(allow_inf_nan=False)
    block: int
    weights: list[Weight] = Field(min_length=1, max_length=_MOST)
    plain: list[str] = Field(max_length=_MOST)
    plain_bytes: _Bytes
    export_bytes: _Bytes
    perplexity: Perplexity | None = None

"""The form that asks for an extraction, and the page that shows what came of it."""

from typing import Final

from pydantic import BaseModel, Field

from deltahub.methods.kinds.kind import RevisionName

# On main of the repository that the extraction made.
REPORT_FILE: Final = "extraction.json"
_MOST: Final = 100_000


class Report(BaseModel):
    """The parts of extraction.json that its page shows; docs/adapters.md says what each means."""

    model: RevisionName
    base: RevisionName
    rank: int
    dtype: str
    n_modules: int
    error: float = Field(allow_inf_nan=False)
    whole_error: float = Field(allow_inf_nan=False)
    left_out: list[str] = Field(max_length=_MOST)

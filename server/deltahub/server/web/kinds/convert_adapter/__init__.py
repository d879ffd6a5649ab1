"""The form that asks for a conversion, and the page that shows what came of it."""

from typing import Final

from pydantic import BaseModel, Field

from deltahub.methods.kinds.kind import RevisionName

# On main of the adapter.
REPORT_FILE: Final = "conversion.json"
_MOST: Final = 100_000


class Report(BaseModel):
    """The parts of conversion.json that its page shows; docs/adapters.md says what each means."""

    adapter: RevisionName
    base: RevisionName
    init: str
    source: str
    rank: int
    trained_rank: int
    dtype: str
    n_modules: int
    error: float = Field(allow_inf_nan=False)
    kept: list[str] = Field(max_length=_MOST)

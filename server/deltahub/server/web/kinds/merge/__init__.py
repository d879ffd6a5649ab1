"""The form that asks for a merge, and the page that shows what came of it."""

from typing import Final

from pydantic import BaseModel, Field

from deltahub.methods.kinds.kind import RevisionName

# On main of the repository that the merge made.
REPORT_FILE: Final = "merge_report.json"
_MOST: Final = 10_000


class WorstTensor(BaseModel):
    name: str
    relative_error: float = Field(allow_inf_nan=False)


class Task(BaseModel):
    """How one fine-tune came out; methods/merging/report.py says what each number means."""

    branch: str
    model: RevisionName
    is_exact: bool
    scale: float | None = None
    relative_error: float = Field(default=0.0, allow_inf_nan=False)
    cosine: float = Field(default=1.0, allow_inf_nan=False)
    mask_share: float | None = None
    changed_share: float | None = None
    kept_tensors: int
    fine_tune_bytes: int
    branch_bytes: int
    worst: list[WorstTensor] = Field(default=[], max_length=100)


class Report(BaseModel):
    """The parts of a merge's report that its page shows."""

    method: str
    rescaler: str | None = None
    base: RevisionName
    fine_tunes_bytes: int
    main_bytes: int
    branches_bytes: int
    merged_tensors: int
    merged_elements: int
    warnings: list[str] = Field(max_length=_MOST)
    tasks: list[Task] = Field(max_length=_MOST)

"""The form that asks for an init kit, and the page that shows what is in one."""

from typing import Final

from pydantic import BaseModel, Field

from deltahub.methods.kinds.kind import RepositoryName

TITLE: Final = "PiSSA init kit"
# On main of the repository that holds the kit.
REPORT_FILE: Final = "kit.json"
_MOST: Final = 100_000


class Module(BaseModel):
    """One adapted matrix; methods/adapters/kit.py says what each number means."""

    module: str
    shape: tuple[int, int]
    energy: float = Field(allow_inf_nan=False)
    largest: float = Field(allow_inf_nan=False)
    smallest: float = Field(allow_inf_nan=False)
    plain_error: float | None = Field(default=None, allow_inf_nan=False)
    fitted_error: float | None = Field(default=None, allow_inf_nan=False)


class Report(BaseModel):
    """The parts of kit.json that its page shows."""

    base: RepositoryName
    base_commit: str
    rank: int
    alpha: float = Field(allow_inf_nan=False)
    dtype: str
    niter: int | None
    quant: str | None
    iters: int | None
    modules: list[Module] = Field(min_length=1, max_length=_MOST)

"""What all bodies share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
TensorId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


class In(BaseModel):
    """A request body: unknown fields are mistakes, and no value is bent into another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Out(BaseModel):
    """An answer; may gain fields, clients ignore those that they do not know."""

    model_config = ConfigDict(from_attributes=True)


class ErrorDetail(Out):
    code: str
    message: str


class ErrorOut(Out):
    """What every refusal looks like."""

    error: ErrorDetail

"""Base classes and types of all JSON bodies."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.responses import Response

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
TensorId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


class In(BaseModel):
    """A request body: unknown fields are errors, and values are not converted to other types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Out(BaseModel):
    """An answer. New fields may be added; clients ignore fields that they do not know."""

    model_config = ConfigDict(from_attributes=True)


def json_answer(shown: Out) -> Response:
    """Return an answer that is written in the thread of the handler.

    FastAPI would write it in the event loop, where a long answer stops all others.
    """
    return Response(shown.model_dump_json(), media_type="application/json")


class ErrorDetail(Out):
    code: str
    message: str
    request_id: str | None = Field(
        default=None, description="of faults of the hub: by it the operator finds them in the log"
    )


class ErrorOut(Out):
    """The body of every error answer."""

    error: ErrorDetail

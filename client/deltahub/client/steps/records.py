"""What the methods of `Hub` about steps return."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from deltahub.client.records import CommitId


@dataclass(frozen=True)
class Step:
    """A step of a run. created_at: ISO 8601."""

    number: Annotated[int, range(10**12)]
    commit: CommitId
    created_at: str


@dataclass(frozen=True)
class PushedStep:
    """The outcome of a push of a step. sent: bytes of the bodies of uploads and recipes.

    changed: False if the run had this step with the same bytes before. changed_tensors: those that
    are not the same bytes as in the step before. size: bytes of the step's files.
    """

    run: str
    number: int
    commit: str
    changed: bool
    tensors: int
    changed_tensors: int
    size: int
    sent: int


@dataclass(frozen=True)
class PulledStep:
    """A step in memory. tensors: name -> tensor of the framework that was asked for.

    since: the step in memory that the difference was taken from; None if all of it came.
    changed: names of the tensors that are not those of that step. received: bytes that came; size:
    bytes of all tensors.
    """

    run: str
    number: int
    commit: str
    since: int | None
    changed: tuple[str, ...]
    size: int
    received: int
    tensors: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class ExportedStep:
    """A step in an exported folder. version: as engines count. folder: None if it has none.

    is_whole: a checkpoint, and no difference from the version before.
    """

    step: int
    version: int
    folder: str | None
    is_whole: bool

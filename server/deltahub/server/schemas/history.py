"""What of a repository's history is kept, and what was dropped."""

from datetime import datetime

from pydantic import Field

from deltahub.registry.retention.prune import Rule
from deltahub.server.schemas.base import In, Out


class RuleIn(In):
    keep_last: int = Field(default=1, description="commits of each branch that are kept")
    keep_every: int | None = Field(
        default=None,
        description="also every commit whose number, counted from the first of its branch, is a "
        "multiple of this",
    )
    older_than_s: int | None = Field(
        default=None, description="younger commits are kept too, in seconds"
    )

    def rule(self) -> Rule:
        return Rule(self.keep_last, self.keep_every, self.older_than_s)


class RuleOut(Out):
    keep_last: int
    keep_every: int | None
    older_than_s: int | None
    of: str = Field(description="the repository or namespace whose rule this is")


class PruneIn(RuleIn):
    dry_run: bool = False


class PrunedOut(Out):
    commits: list[str] = Field(description="what was dropped, the oldest first")
    kept: int = Field(description="revisions that stay")
    size_bytes: int = Field(description="of files that no kept revision lists, as they were pushed")
    stored_bytes: int = Field(description="what the repository stores less")


class DroppedOut(Out):
    commit: str
    title: str
    created_at: datetime
    reason: str
    dropped_at: datetime
    by: str | None = Field(description="null: a rule of retention")
    until: datetime = Field(description="it can be taken back before")


class DroppedPage(Out):
    items: list[DroppedOut]
    next_cursor: str | None


class TakeBackIn(In):
    branch: str = Field(description="a new branch for the revision")

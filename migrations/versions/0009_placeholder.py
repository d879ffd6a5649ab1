"""Stands for a migration of another branch, and changes nothing."""

revision: str = "0009"
down_revision: str | None = "0008"


def upgrade() -> None:
    pass

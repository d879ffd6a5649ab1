"""What lists of models need: the facts of revisions, and the tags by which models are found."""

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from deltahub.registry.db.columns import Base


class RevisionFacts(Base):
    """What the files of a revision say (cards/facts.py). The same for ever, so written once.

    Without a row nobody has read the files yet, or one of them could not be read.
    """

    __tablename__ = "revision_facts"
    revision_id: Mapped[int] = mapped_column(
        ForeignKey("revisions.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    n_files: Mapped[int] = mapped_column()
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    n_parameters: Mapped[int | None] = mapped_column(BigInteger)
    # library, pipeline, tags, bases, relation, adapter_base, parameters by dtype
    facts: Mapped[dict[str, Any]] = mapped_column(JSON)
    # Large, and not shown by most lists.
    config: Mapped[dict[str, Any]] = mapped_column(JSON, deferred=True)
    card: Mapped[dict[str, Any]] = mapped_column(JSON, deferred=True)


class ModelTag(Base):
    """A key by which filters find a repository, of the head of its main (lists/model_tags.py).

    is_private and namespace_id repeat those of the repository, so that a search reads the tags of
    readable repositories alone. Triggers keep them equal (migration 0005).
    """

    __tablename__ = "model_tags"
    tag: Mapped[str] = mapped_column(String(250), primary_key=True)
    is_private: Mapped[bool] = mapped_column(primary_key=True)
    namespace_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    repository_id: Mapped[int] = mapped_column(
        ForeignKey("repositories.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        index=True,
    )

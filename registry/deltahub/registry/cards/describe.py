"""Writes the facts of revisions as rows: right after a commit, at its ingest, and of older hubs."""

import logging
from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import undefer

from deltahub.registry.access.repositories import find_repository
from deltahub.registry.cards.facts import Facts, find_files, read_facts
from deltahub.registry.cards.spent import Spent
from deltahub.registry.catalog.lists.model_tags import UNKNOWN, write_keys
from deltahub.registry.catalog.model_files import MAX_SHARDS
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.db.session import ReadSession, repository_key
from deltahub.registry.db.tables.lists import ModelTag, RevisionFacts
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import RegistryError
from deltahub.registry.packs.block_cache import ByteCache
from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)

# (id of a revision, its commit) -> facts that were read for want of a row. Limit: 32 MiB.
_READ: Final[ByteCache[tuple[int, str], Facts]] = ByteCache(32 << 20)
# Values as Python objects take about this many bytes for each byte of their text.
_OBJECT_BYTES: Final = 8
# The headers of more files of weights are not read while a client waits for its commit.
_SHARDS_AT_COMMIT: Final = 16
_MAX_INT: Final = (1 << 63) - 1


def describe(
    reg: Registry, reader: FileReader, revision_id: int, max_shards: int = MAX_SHARDS
) -> bool:
    """Write the facts of a revision, unless they are there; whether they are there now.

    They are not if a file cannot be read at the moment, if the revision was deleted, or if its
    weights are in more than max_shards files.
    """
    with reg.db.read() as session:
        revision = session.get(Revision, revision_id)
        if revision is None:
            return False
        if session.get(RevisionFacts, revision_id) is None:
            files = find_files(session, revision, _unbounded())
        else:
            return True
    if len(files.weights) > max_shards:
        return False
    facts, is_whole = read_facts(reader, files, _unbounded())
    if not is_whole:
        return False
    with reg.db.write_beside(repository_key(revision.repository_id)) as session:
        now = session.get(Revision, revision_id)
        # Row ids are given again: the revision may be another one now.
        if now is None or now.commit != revision.commit:
            return False
        if session.get(RevisionFacts, revision_id) is None:
            session.add(_row(revision_id, facts))
            session.flush()
            write_keys(session, revision_id)
    return True


def describe_commit(reg: Registry, reader: FileReader, name: str, commit: str) -> None:
    """Write the facts of a commit that was just made, if that is quick.

    Nothing is raised, because the commit is made. What fails here is repeated by the ingest.
    """
    try:
        with reg.db.read() as session:
            repository = find_repository(session, name)
            found = None if repository is None else _find(session, repository, commit)
        if found is not None:
            describe(reg, reader, found, _SHARDS_AT_COMMIT)
    except RegistryError as error:
        log.warning("commit=%s: its facts are not written yet: %s", commit, error)
    except Exception:
        log.exception("commit=%s: its facts are not written yet", commit)


def describe_marked(reg: Registry, reader: FileReader, after: int, limit: int) -> int | None:
    """Write the facts of up to `limit` heads that lack them, by id of their repository.

    after: what the call before returned, at first 0. Returns None after the last one.
    """
    with reg.db.read() as session:
        rows = session.execute(
            select(Repository.id, Repository.head_id)
            .join(ModelTag, ModelTag.repository_id == Repository.id)
            .where(ModelTag.tag == UNKNOWN, Repository.id > after)
            .order_by(Repository.id)
            .limit(limit)
        ).all()
    for _, head in rows:
        describe(reg, reader, head)
    return rows[-1][0] if len(rows) == limit else None


def load_facts(
    session: ReadSession, revisions: Iterable[int], *, with_files: bool
) -> dict[int, Facts]:
    """Revision -> facts, for those that have a row. with_files: with card and configuration."""
    query = select(RevisionFacts).where(RevisionFacts.revision_id.in_(list(revisions)))
    if with_files:
        query = query.options(undefer(RevisionFacts.card), undefer(RevisionFacts.config))
    return {row.revision_id: _facts(row, with_files=with_files) for row in session.scalars(query)}


def facts_without_row(reg: Registry, reader: FileReader, revision: Revision, spent: Spent) -> Facts:
    """The facts of a revision, read from its files, for the time until they have a row."""
    key = (revision.id, revision.commit)
    known = _READ.get(key)
    if known is not None:
        return known
    with reg.db.read() as session:
        files = find_files(session, revision, spent)
    facts, is_whole = read_facts(reader, files, spent)
    if is_whole:  # else a later read may succeed
        n_bytes = len(str(facts.card)) + len(str(facts.config)) + len(str(facts.tags))
        _READ.put(key, facts, 1000 + _OBJECT_BYTES * n_bytes)
    return facts


def _find(session: ReadSession, repository: Repository, commit: str) -> int | None:
    return session.scalar(
        select(Revision.id).where(
            Revision.repository_id == repository.id, Revision.commit == commit
        )
    )


def _row(revision_id: int, facts: Facts) -> RevisionFacts:
    n_parameters = sum(facts.parameters.values()) if facts.parameters else None
    return RevisionFacts(
        revision_id=revision_id,
        n_files=facts.n_files,
        size_bytes=facts.size_bytes,
        n_parameters=None if n_parameters is None else min(n_parameters, _MAX_INT),
        facts={name: getattr(facts, name) for name in _IN_JSON},
        config=dict(facts.config or {}),
        card=dict(facts.card or {}),
    )


def _facts(row: RevisionFacts, *, with_files: bool) -> Facts:
    stated: dict[str, Any] = {name: row.facts.get(name) for name in _IN_JSON}
    return Facts(
        n_files=row.n_files,
        size_bytes=row.size_bytes,
        card=row.card if with_files else None,
        config=row.config if with_files else None,
        **stated,
    )


_IN_JSON: Final = (
    "library", "pipeline", "tags", "bases", "relation", "adapter_base", "parameters",
)  # fmt: skip


def _unbounded() -> Spent:
    return Spent(_MAX_INT, _MAX_INT)

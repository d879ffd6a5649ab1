"""Looks up the revision that a Hugging Face client names."""

from starlette.requests import Request

from deltahub.registry import ReadSession, Repository, Revision
from deltahub.registry.access.repositories import DEFAULT_BRANCH
from deltahub.registry.catalog.refs import is_empty, resolve_revision
from deltahub.registry.errors import EntryNotFound, RevisionNotFound
from deltahub.registry.names import quoted
from deltahub.server.connections.inner_paths import unescaped

# What git calls the newest commit of the default branch.
_HEAD = "HEAD"
_BRANCHES = "refs/heads/"
_MAIN = (DEFAULT_BRANCH, f"{_BRANCHES}{DEFAULT_BRANCH}")


def plain_revision(name: str) -> str:
    """Return the revision that a part of a path names: HEAD is main."""
    revision = unescaped(name)
    return DEFAULT_BRANCH if revision == _HEAD else revision


def branch_of(name: str) -> str:
    """Return the branch that a part of a path names to commit to: that which readers get for it."""
    return plain_revision(name).removeprefix(_BRANCHES)


def revision_of(
    request: Request, session: ReadSession, repository: Repository, name: str
) -> Revision:
    """Return the revision with this name, and note its commit for a later error answer.

    Raises RevisionNotFound; EntryNotFound for main of an empty repository, because these clients
    expect a branch main in every repository and take the file as missing.
    """
    revision = plain_revision(name)
    if revision.startswith("refs/pr/"):
        raise RevisionNotFound(
            f"this hub has no pull requests, and so no {quoted(revision)}: ask for a branch"
        )
    if revision in _MAIN and is_empty(session, repository):
        raise EntryNotFound("nothing has been committed to this repository yet")
    found = resolve_revision(session, repository, revision)
    request.state.commit = found.commit
    return found

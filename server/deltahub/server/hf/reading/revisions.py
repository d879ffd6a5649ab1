"""Looks up the revision that a Hugging Face client names."""

from starlette.requests import Request

from deltahub.registry import ReadSession, Repository, Revision
from deltahub.registry.access.repositories import DEFAULT_BRANCH
from deltahub.registry.catalog.refs import is_empty, resolve_revision
from deltahub.registry.errors import EntryNotFound
from deltahub.server.connections.inner_paths import unescaped

_MAIN = (DEFAULT_BRANCH, f"refs/heads/{DEFAULT_BRANCH}")


def revision_of(
    request: Request, session: ReadSession, repository: Repository, name: str
) -> Revision:
    """Return the revision with this name, and note its commit for a later error answer.

    Raises RevisionNotFound; EntryNotFound for main of an empty repository, because these clients
    expect a branch main in every repository and take the file as missing.
    """
    revision = unescaped(name)
    if revision in _MAIN and is_empty(session, repository):
        raise EntryNotFound("nothing has been committed to this repository yet")
    found = resolve_revision(session, repository, revision)
    request.state.commit = found.commit
    return found

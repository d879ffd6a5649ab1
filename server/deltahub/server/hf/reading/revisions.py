"""What a revision's name means to Hugging Face clients."""

from starlette.requests import Request

from deltahub.registry import ReadSession, Repository, Revision
from deltahub.registry.access.repositories import DEFAULT_BRANCH
from deltahub.registry.catalog.refs import is_empty, resolve_revision
from deltahub.registry.errors import EntryNotFound
from deltahub.server.hf.door import unescaped

_MAIN = (DEFAULT_BRANCH, f"refs/heads/{DEFAULT_BRANCH}")


def revision_of(
    request: Request, session: ReadSession, repository: Repository, name: str
) -> Revision:
    """The revision; whatever is not found later on is said to be missing from its commit.

    RevisionNotFound; EntryNotFound for main where nothing is committed yet: those clients count on
    a branch main in every repository, which then just lacks the file.
    """
    revision = unescaped(name)
    if revision in _MAIN and is_empty(session, repository):
        raise EntryNotFound("nothing has been committed to this repository yet")
    found = resolve_revision(session, repository, revision)
    request.state.commit = found.commit
    return found

"""What the pages of a model share: the model, the revision that an address names, its refs."""

from dataclasses import dataclass
from typing import Final

from deltahub.registry import ReadSession, Repository, Revision
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.adapters.reports import shown_state
from deltahub.registry.catalog import repositories
from deltahub.registry.catalog.refs import RefInfo, is_empty, list_refs, resolve_revision
from deltahub.registry.catalog.repositories import RepositoryInfo
from deltahub.server.connections.inner_paths import unescaped
from deltahub.server.hub import Hub

# Branches and tags in the menu of a page; the page of refs has all.
_IN_MENU: Final = 30


@dataclass(frozen=True)
class ShownModel(RepositoryInfo):
    """A model as its pages show it. adapter: its state if it is an adapter that was looked at."""

    adapter: str | None


@dataclass(frozen=True)
class AtRevision:
    """A model at a revision. name: as the address has it, with slashes.

    row: None if nothing has been committed to the model.
    """

    model: ShownModel
    name: str
    row: Revision | None
    repository: Repository
    branches: list[RefInfo]
    tags: list[RefInfo]

    @property
    def is_commit(self) -> bool:
        """Whether the address names a commit rather than a branch or tag."""
        return self.row is not None and self.row.commit.startswith(self.name)


def load_model(hub: Hub, viewer: Caller | None, name: str) -> ShownModel:
    """Return the model `namespace/name`; RepositoryNotFound if the viewer may not read it."""
    info = repositories.get_repository(hub.registry, viewer, name)
    with hub.registry.db.read() as session:
        return ShownModel(**vars(info), adapter=shown_state(session, info.id))


def load_at(
    hub: Hub, viewer: Caller | None, namespace: str, name: str, revision: str
) -> AtRevision:
    """Return the model at a revision. RepositoryNotFound, RevisionNotFound."""
    model = load_model(hub, viewer, f"{namespace}/{name}")
    shown = unescaped(revision)
    with hub.registry.db.read() as session:
        repository = load_repository(session, viewer, model.name)
        row = _row(session, repository, shown)
        branches = list_refs(session, repository, "branch", "", _IN_MENU)
        tags = list_refs(session, repository, "tag", "", _IN_MENU)
    return AtRevision(model, shown, row, repository, branches, tags)


def _row(session: ReadSession, repository: Repository, name: str) -> Revision | None:
    if name == DEFAULT_BRANCH and is_empty(session, repository):
        return None
    return resolve_revision(session, repository, name)

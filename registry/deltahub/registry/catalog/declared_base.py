"""What was made from what. Declared edges are what people say; measured ones are never mixed in."""

from dataclasses import dataclass

from sqlalchemy import select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed, full_name
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.db.models import LineageEdge, Repository, Revision
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.errors import InvalidName, InvalidRequest, NotFound
from deltahub.registry.names import quoted

MAX_DECLARED = 300
# Of the bytes of the weights: from here on a measured parent is told of as a base.
MOST = 0.5
# What a commit names to declare that there is no base; no repository can have this name.
NO_BASE = "none"
_KIND_OF_ROLE = {"adapter": "adapter", "merge": "merge", "export": "export"}


def check_declared(base: str) -> str:
    """What a pusher says the base is, any printable text up to 300 characters; InvalidRequest."""
    if not base or len(base) > MAX_DECLARED or not base.isprintable():
        raise InvalidRequest(
            f"{quoted(base)} is no base: write namespace/name or namespace/name@revision,"
            f" at most {MAX_DECLARED} characters"
        )
    return base


def resolve_declared(session: ReadSession, caller: Caller | None, base: str) -> Revision | None:
    """The revision that `namespace/name[@revision]` means at this moment.

    None when it does not exist here or the caller may not read it: one cannot be told from the
    other. Models named on another hub are usual, so this is no error.
    """
    name, _, revision = base.partition("@")
    try:
        repository = load_repository(session, caller, name)
        return resolve_revision(session, repository, revision or DEFAULT_BRANCH)
    except (InvalidName, NotFound):
        return None


@dataclass(frozen=True)
class DeclaredBase:
    """What a revision says that it was made from.

    said: the name, as the pusher wrote it. name: as the model is called now, after a move, too;
    what was said, where it is not here or not for the viewer to read: then revision is None.
    at: "" or `@` and a revision, as it was said.
    """

    said: str
    name: str
    at: str
    revision: Revision | None

    @property
    def text(self) -> str:
        """`namespace/name[@revision]`, as it is shown."""
        return self.name + self.at


def find_declared(
    session: ReadSession, caller: Caller | None, revision: Revision
) -> DeclaredBase | None:
    """The base of a revision as the caller may know of it; None where none was declared."""
    if revision.declared_base is None:
        return None
    said, at, rest = revision.declared_base.partition("@")
    found_id = revision.declared_base_revision_id
    found = None if found_id is None else session.get(Revision, found_id)
    if found is not None:
        repository = session.get_one(Repository, found.repository_id)
        # Who may not read it is not to learn how it is called now.
        if allowed(session, caller, "read", repository):
            return DeclaredBase(said, full_name(session, repository), at + rest, found)
    return DeclaredBase(said, said, at + rest, None)


def declare(
    session: WriteSession, repository: Repository, child: Revision, parent: Revision
) -> None:
    """Keep the edge that `child`, a new revision of `repository`, was made from `parent`."""
    kind = _KIND_OF_ROLE.get(repository.role or "", "finetune")
    session.add(LineageEdge(child_id=child.id, parent_id=parent.id, kind=kind, origin="declared"))


def parents(session: ReadSession, revision: Revision, origin: str) -> list[LineageEdge]:
    """Edges of that origin up from a revision, the largest share first; NOT filtered by viewer."""
    query = select(LineageEdge).where(
        LineageEdge.child_id == revision.id, LineageEdge.origin == origin
    )
    return sorted(session.scalars(query), key=lambda edge: -(edge.share or 0.0))

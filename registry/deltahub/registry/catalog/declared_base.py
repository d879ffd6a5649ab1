"""The bases that people declare for revisions, and the declared edges of lineage."""

from dataclasses import dataclass

from sqlalchemy import select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed, full_name
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.catalog.weights import has_weights
from deltahub.registry.db.models import LineageEdge, Repository, Revision
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.errors import InvalidName, InvalidRequest, NotFound, RepositoryMoved
from deltahub.registry.names import quoted

MAX_DECLARED = 300
# Declares that a revision has no base. No repository can have this name.
NO_BASE = "none"
_KIND_OF_ROLE = {"adapter": "adapter", "merge": "merge", "export": "export"}


def check_declared(base: str) -> str:
    """The declared base as given; InvalidRequest unless it is 1 to 300 printable characters."""
    if not base or len(base) > MAX_DECLARED or not base.isprintable():
        raise InvalidRequest(
            f"{quoted(base)} is no base: write namespace/name or namespace/name@revision,"
            f" at most {MAX_DECLARED} characters"
        )
    return base


def resolve_declared(session: ReadSession, caller: Caller | None, base: str) -> Revision | None:
    """The revision that `namespace/name[@revision]` names now.

    None if it does not exist here or the caller may not read it; both look the same. This is no
    error, because many declared bases are models of another hub.
    """
    name, _, revision = base.partition("@")
    try:
        try:
            repository = load_repository(session, caller, name)
        except RepositoryMoved as moved:
            repository = load_repository(session, caller, moved.new_name)
        return resolve_revision(session, repository, revision or DEFAULT_BRANCH)
    except (InvalidName, NotFound):
        return None


@dataclass(frozen=True)
class DeclaredBase:
    """The base that a revision declares.

    declared_name: the name that the pusher wrote. name: the current name of that model, also after
    a move; equal to declared_name if the model is not here or the viewer may not read it. Then
    revision is None. at: "" or `@` and a revision, as the pusher wrote it.
    """

    declared_name: str
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
    """The declared base of a revision, as far as the caller may read it; None without one."""
    if revision.declared_base is None:
        return None
    declared_name, at, rest = revision.declared_base.partition("@")
    found_id = revision.declared_base_revision_id
    found = None if found_id is None else session.get(Revision, found_id)
    if found is not None:
        repository = session.get_one(Repository, found.repository_id)
        # A caller who may not read the base must not learn its current name.
        if allowed(session, caller, "read", repository):
            return DeclaredBase(declared_name, full_name(session, repository), at + rest, found)
    return DeclaredBase(declared_name, declared_name, at + rest, None)


def base_of_new(
    session: ReadSession, caller: Caller, base: str | None, parent: Revision | None
) -> tuple[str | None, int | None]:
    """(declared base, id of the revision that it resolves to) of a new revision.

    base: as the pusher declares it; None for that of the parent.
    """
    if base is None and parent is not None:
        if parent.declared_base_revision_id is not None:
            return parent.declared_base, parent.declared_base_revision_id
        base = parent.declared_base  # it may have been pushed since the parent was committed
    if base is None or base == NO_BASE:
        return None, None
    found = resolve_declared(session, caller, base)
    row = None if found is None else found.id
    is_usable = row is not None and has_weights(session, row)
    if not is_usable and parent is not None and base == parent.declared_base:
        # A card repeats its declaration in each commit. Since the first one, the base may have been
        # renamed, and its name may belong to a model without weights: keep the parent's base.
        row = parent.declared_base_revision_id or row
    return base, row


def base_of_copied(
    session: ReadSession, caller: Caller | None, copied: Revision
) -> tuple[str | None, int | None]:
    """(declared base, id of the revision that it resolves to) of a copy of a revision.

    The same as the revision's own, unless the caller may not read that.
    """
    now = session.get(Revision, copied.id)
    # Row ids are given again: the revision may be another one now.
    if now is not None and now.commit == copied.commit:
        known = find_declared(session, caller, now)
        if known is not None and known.revision is not None:
            return now.declared_base, known.revision.id
    base = copied.declared_base
    found = None if base is None else resolve_declared(session, caller, base)
    return base, None if found is None else found.id


def declare(
    session: WriteSession, repository: Repository, child: Revision, parent: Revision
) -> None:
    """Store the declared edge from `child`, a revision of `repository`, to its base `parent`."""
    kind = _KIND_OF_ROLE.get(repository.role or "", "finetune")
    session.add(LineageEdge(child_id=child.id, parent_id=parent.id, kind=kind, origin="declared"))


def parent_edges(session: ReadSession, revision: Revision, origin: str) -> list[LineageEdge]:
    """Edges of an origin from a revision to its parents, the largest share first.

    NOT filtered by what the caller may read.
    """
    query = select(LineageEdge).where(
        LineageEdge.child_id == revision.id, LineageEdge.origin == origin
    )
    return sorted(session.scalars(query), key=lambda edge: -(edge.share or 0.0))

"""What a caller may read, as parts that indexes give in the order of a list."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import find_namespace
from deltahub.registry.db.models import Membership, Namespace
from deltahub.registry.db.session import ReadSession
from deltahub.registry.names import is_name

# Namespaces that are parts of their own. Those of a caller with more of them are one part, which
# the database has to sort.
_MAX_PARTS: Final = 100


@dataclass(frozen=True)
class Part:
    """All public or all private repositories, of all namespaces (None) or of some.

    namespaces: their ids and names.
    """

    is_private: bool
    namespaces: tuple[tuple[int, str], ...] | None = None

    def condition(self, table: Any) -> ColumnElement[bool]:
        """True for rows of a table with is_private and namespace_id that are of this part."""
        of_all: ColumnElement[bool] = table.is_private == self.is_private
        if self.namespaces is None:
            return of_all
        ids = [namespace for namespace, _ in self.namespaces]
        if len(ids) == 1:
            return and_(of_all, table.namespace_id == ids[0])
        return and_(of_all, table.namespace_id.in_(ids))


def readable_parts(
    session: ReadSession, caller: Caller | None, namespace: str | None = None
) -> Sequence[Part]:
    """The parts of which the caller may read every repository; they do not overlap.

    namespace: of this one alone.
    """
    if namespace is not None:
        found = find_namespace(session, namespace) if is_name(namespace) else None
        if found is None:
            return []
        row = (found.id, found.name)
        is_member = caller is not None and (
            caller.is_superuser or session.get(Membership, (row[0], caller.user_id)) is not None
        )
        return [Part(False, (row,)), *([Part(True, (row,))] if is_member else [])]
    public = Part(False)
    if caller is None:
        return [public]
    if caller.is_superuser:
        return [public, Part(True)]
    own = [
        (found, name)
        for found, name in session.execute(
            select(Namespace.id, Namespace.name)
            .join(Membership, Membership.namespace_id == Namespace.id)
            .where(Membership.user_id == caller.user_id)
        )
    ]
    if len(own) > _MAX_PARTS:
        return [public, Part(True, tuple(own))]
    return [public, *(Part(True, (each,)) for each in own)]

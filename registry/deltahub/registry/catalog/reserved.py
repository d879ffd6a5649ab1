"""Names of branches that the hub's own jobs make, and that people cannot give."""

from typing import Final

from deltahub.registry.access.permissions import full_name
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import InvalidRequest

# Of an adapter: its base with it merged in. Readers rely on it being just that.
MERGED: Final = "merged"
_ADAPTER: Final = "adapter_config.json"


def refuse_reserved(session: ReadSession, repository: Repository, ref: str) -> None:
    """InvalidRequest for the name that the repository keeps for the hub's own job."""
    if ref != MERGED or repository.head_id is None:
        return
    head = session.get_one(Revision, repository.head_id)
    if entries_at(session, head, [_ADAPTER]):
        name = full_name(session, repository)
        raise InvalidRequest(
            f"{MERGED} is reserved in {name}, because it is an adapter: `deltahub adapter merge"
            f" {name}` makes this branch, as the base with the adapter merged in; choose another"
            " name"
        )

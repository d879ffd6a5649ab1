"""Whether any row of the database knows an object of the store."""

from sqlalchemy.orm import Session

from deltahub.registry.db.models import Landing, Pack, Xorb
from deltahub.registry.storage.keys import LANDINGS, PACKS, XORBS


def is_known(session: Session, key: str) -> bool:
    """True for the object of a pack's, a xorb's or an upload's row."""
    row_id = key.rsplit("/", 1)[-1]
    if key.startswith(PACKS):
        return session.get(Pack, row_id) is not None
    if key.startswith(XORBS):
        return session.get(Xorb, row_id) is not None
    return key.startswith(LANDINGS) and session.get(Landing, row_id) is not None

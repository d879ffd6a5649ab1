"""Uploads that are to go: condemned rows, which stay until their objects are deleted."""

from collections.abc import Sequence

from sqlalchemy import delete

from deltahub.registry import failpoints
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Landing, utc_now
from deltahub.registry.registry import Registry
from deltahub.registry.storage.keys import landing_key


def condemn(row: Landing) -> None:
    """Give the SHA-256 free, so that the same bytes may be uploaded again, under another id.

    Nothing makes a condemned upload complete. So whoever still writes its object does no harm.
    """
    row.state, row.sha256 = "condemned", f"condemned-{row.id}"
    row.expires_at = utc_now()


def delete_condemned(reg: Registry, landing_ids: Sequence[str]) -> None:
    """Delete the objects of condemned uploads, then their rows, after the commit of condemn()."""
    reg.store.delete_together([landing_key(landing_id) for landing_id in landing_ids])
    failpoints.reached("landing.delete.before_rows")
    if landing_ids:
        with reg.db.write_beside() as session:
            for batch in batches(landing_ids):
                session.execute(
                    delete(Landing).where(Landing.id.in_(batch), Landing.state == "condemned")
                )

"""Takes the mark from a damaged upload whose bytes are right again."""

from deltahub.registry.db.models import Landing
from deltahub.registry.landings.reader import hashes_of
from deltahub.registry.losses import findings
from deltahub.registry.registry import Registry
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.uploads.landing import complete


def restore_upload(reg: Registry, landing_id: str) -> bool:
    """Make a damaged upload complete if its bytes are right; whether it is.

    Unavailable, StoreUnavailable if the store does not say.
    """
    with reg.db.read() as session:
        landing = session.get(Landing, landing_id)
    if landing is None or landing.state != "damaged":
        return False
    hashes = hashes_of(reg, landing_key(landing_id), landing.size)
    if hashes is None or hashes.sha256 != landing.sha256:
        return False
    with reg.db.write() as session:
        row = session.get(Landing, landing_id)
        if row is None or row.state != "damaged":
            return False
        complete(session, row, hashes, reg.settings.upload_ttl_s)
        findings.close(session, "landing", [landing_id], "its bytes are right again")
    return True

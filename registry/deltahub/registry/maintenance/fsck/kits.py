"""Checks the discriminators of kits, which lie in the database, against what their rows say."""

from hashlib import sha256

from sqlalchemy import func, or_, select

from deltahub.registry.access.permissions import full_name
from deltahub.registry.adapters.kits import PART_BYTES, discriminator_parts
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import Repository
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.comparisons import AdapterKit, AdapterKitPart
from deltahub.registry.maintenance.fsck.findings import Finding, Findings
from deltahub.registry.registry import Registry


def check_kit_sizes(reg: Registry) -> Findings:
    """Check that each kit has all parts of its discriminator."""
    length = func.length(AdapterKitPart.data)
    parts = (
        select(
            AdapterKitPart.kit_id,
            total(length).label("size"),
            (func.max(AdapterKitPart.number) + 1).label("n_places"),
            func.count().label("n_parts"),
        )
        .group_by(AdapterKitPart.kit_id)
        .subquery()
    )
    size = func.coalesce(parts.c.size, 0)
    n_parts = func.coalesce(parts.c.n_parts, 0)
    query = (
        select(AdapterKit.id, AdapterKit.repository_id, AdapterKit.size, size)
        .outerjoin(parts, parts.c.kit_id == AdapterKit.id)
        .where(
            or_(
                size != AdapterKit.size,
                n_parts != (AdapterKit.size + PART_BYTES - 1) // PART_BYTES,
                n_parts != parts.c.n_places,
            )
        )
    )
    with reg.db.read() as session:
        for kit_id, repository_id, wanted, found in session.execute(query).all():
            text = f"has {found} bytes, not {wanted}, or its parts are out of order"
            yield _finding(session, kit_id, repository_id, text)


def check_kit_bytes(reg: Registry) -> Findings:
    """Check that each discriminator still has its SHA-256."""
    with reg.db.read() as session:
        kits = session.execute(select(AdapterKit.id)).scalars().all()
    for kit_id in kits:
        with reg.db.read() as session:
            # Not kit.json: where that cannot be read, the other kits must still be checked.
            columns = (AdapterKit.repository_id, AdapterKit.size, AdapterKit.discriminator_sha256)
            row = session.execute(select(*columns).where(AdapterKit.id == kit_id)).one_or_none()
            if row is None:
                continue  # deleted meanwhile
            digest, size = sha256(), 0
            for piece in discriminator_parts(session, kit_id):
                digest.update(piece)
                size += len(piece)
            # check_kit_sizes reports another size.
            if size == row.size and digest.hexdigest() != row.discriminator_sha256:
                text = f"now reads as {digest.hexdigest()}"
                yield _finding(session, kit_id, row.repository_id, text)


def _finding(session: ReadSession, kit_id: str, repository_id: int, text: str) -> Finding:
    name = full_name(session, session.get_one(Repository, repository_id))
    return Finding("kit_damaged", kit_id, f"the discriminator of the kit of {name} {text}")

"""What those who may write to an adapter are shown of its kit. Nothing else of it goes out."""

from dataclasses import dataclass
from datetime import datetime

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.adapters.files import WEIGHTS
from deltahub.registry.adapters.kits import kit_row, kit_with_names, may_read_revision
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import EntryNotFound
from deltahub.registry.registry import Registry


@dataclass(frozen=True)
class KitFacts:
    """What may be shown of a kit to those who may write to its repository.

    name: of the private dataset. base: None if the caller may not read it. is_current: main has the
    weights that the kit was made for.
    """

    name: str
    base: str | None
    n_examples: int
    n_seeds: int
    source_accuracy: float | None
    n_tests: int
    auc: float
    auc_error: float
    has_sketch: bool
    is_current: bool
    size: int
    created_at: datetime


def read_kit_facts(reg: Registry, caller: Caller | None, name: str) -> KitFacts:
    """The facts for a caller who may write to the repository; EntryNotFound without a kit."""
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        found = kit_facts(session, caller, repository)
    if found is None:
        raise EntryNotFound(
            f"{name} has no kit: make one where its private data are (deltahub adapter kit)"
        )
    return found


def kit_facts(
    session: ReadSession, caller: Caller | None, repository: Repository
) -> KitFacts | None:
    """What may be shown to a caller who may write to the repository; None without a kit.

    NOT checked: whether the caller may.
    """
    row = kit_row(session, repository.id)
    if row is None:
        return None
    kit, report = kit_with_names(session, row), row.kit["discriminator"]
    base = None if row.base_revision_id is None else session.get(Revision, row.base_revision_id)
    is_shown = base is None or may_read_revision(session, caller, base)
    return KitFacts(
        name=kit["name"],
        base=kit["base"] if is_shown else None,
        n_examples=kit["n_examples"],
        n_seeds=len(kit["seeds"]),
        source_accuracy=kit.get("source_accuracy"),
        n_tests=kit.get("n_tests", 0),
        auc=report["auc"],
        auc_error=report["auc_error"],
        has_sketch=kit.get("sketch") is not None,
        is_current=_weights(session, repository) == row.adapter_sha256,
        size=row.size,
        created_at=row.created_at,
    )


def _weights(session: ReadSession, repository: Repository) -> str | None:
    head = session.get(Revision, repository.head_id)
    entry = None if head is None else entries_at(session, head, [WEIGHTS]).get(WEIGHTS)
    return None if entry is None else entry.sha256

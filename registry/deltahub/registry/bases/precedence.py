"""Decides which of two models may be the base of the other: the declared one, else the older.

The weights cannot decide, because a delta is equally small in both directions. All models follow
one order, so that two models never become deltas of each other in turn. A base that is already
stored as a delta of its fine-tune stays so when the fine-tune declares it later.
"""

from collections.abc import Iterable

from sqlalchemy import or_, select

from deltahub.registry.access.repositories import find_repository
from deltahub.registry.bases.candidates import Candidate
from deltahub.registry.bases.matching import BaseOption
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import FileTensor, Namespace, Repository, Revision, Tensor
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.errors import InvalidName
from deltahub.registry.lineage.holders import find_holders
from deltahub.registry.lineage.target import Target, declares
from deltahub.registry.packs.locations import closure
from deltahub.registry.registry import Registry

# Most descendants of the target that are considered, the newest first.
MAX_DESCENDANTS = 500


class Precedence:
    """Decides which bases one revision's tensors may have. Not shared between threads.

    Its answers are advice, like all planning; the switch to a new base refuses cycles by itself.
    """

    def __init__(self, reg: Registry, target: Target) -> None:
        self._reg = reg
        self._target = target
        with reg.db.read() as session:
            self._descendants = _find_descendants(session, target)
            self._declared_model = _find_declared_model(session, target)
        self._is_from_descendant: dict[int, bool] = {}

    def allows(self, option: BaseOption, candidate: Candidate, tensor_id: int | None) -> bool:
        """Whether a tensor may become a delta of this option as the option is stored now.

        tensor_id: the tensor's row, None if it is not stored yet. Three kinds of option are
        refused. First, an option that needs the tensor itself. Second, an option that was stored
        after the tensor in the same domain, unless it is of the target's own history, or the
        target declares its model as the base and its namespace had the tensor first. Third, a
        detected option that needs a tensor of a descendant of the target's model.
        """
        may_lead_to_descendant = candidate.origin == "detected" and bool(self._descendants)
        if tensor_id is None and not may_lead_to_descendant:
            return True
        with self._reg.db.read() as session:
            if tensor_id is not None and tensor_id in closure(session, _ids(option)):
                return False
            if (
                tensor_id is not None
                and candidate.origin != "earlier"
                and _is_younger(session, option, tensor_id)
                and not (self._is_declared(session, candidate) and self._is_own(session, tensor_id))
            ):
                return False
            return not may_lead_to_descendant or not any(
                self._leads_to_descendant(session, base_id) for base_id in _ids(option)
            )

    def _is_declared(self, session: ReadSession, candidate: Candidate) -> bool:
        """Whether the target declares the candidate's model as its base, at any revision."""
        if candidate.origin == "declared":
            return True
        revision = session.get(Revision, candidate.revision_id)
        return revision is not None and revision.repository_id == self._declared_model

    def _is_own(self, session: ReadSession, tensor_id: int) -> bool:
        """Whether the target's namespace had the tensor first; later copies do not count."""
        holders = find_holders(session, [tensor_id], self._target.domains)
        first = min(holders, key=lambda holder: holder.revision_id, default=None)
        if first is None:
            return True  # the target itself is not ingested yet
        repository = session.get_one(Repository, first.repository_id)
        return repository.namespace_id == self._target.namespace_id

    def _leads_to_descendant(self, session: ReadSession, tensor_id: int) -> bool:
        known = self._is_from_descendant.get(tensor_id)
        if known is None:
            needed = list(closure(session, [tensor_id]))
            known = self._is_from_descendant[tensor_id] = any(
                session.scalar(
                    select(FileTensor.tensor_id)
                    .join(Entry, Entry.file_id == FileTensor.file_id)
                    .where(FileTensor.tensor_id.in_(needed), Entry.revision_id.in_(batch))
                    .limit(1)
                )
                is not None
                for batch in batches(self._descendants)
            )
        return known


def _ids(option: BaseOption) -> list[int]:
    return [tensor.id for tensor in option.tensors]


def _find_declared_model(session: ReadSession, target: Target) -> int | None:
    """The repository that the target declares as its base, even if the revision is missing."""
    revision = session.get(Revision, target.revision_id)
    if revision is None or revision.declared_base is None:
        return None
    if revision.declared_base_revision_id is not None:
        return session.get_one(Revision, revision.declared_base_revision_id).repository_id
    try:
        found = find_repository(session, revision.declared_base.partition("@")[0])
    except InvalidName:
        return None  # of another hub, or none at all
    return found.id if found is not None and found.domain_id in target.domains else None


def _is_younger(session: ReadSession, option: BaseOption, tensor_id: int) -> bool:
    """Whether a tensor of the option was stored later than this tensor in the same domain."""
    tensor = session.get(Tensor, tensor_id)
    rows: Iterable[Tensor] = session.scalars(select(Tensor).where(Tensor.id.in_(_ids(option))))
    return tensor is not None and any(
        row.domain_id == tensor.domain_id
        and (row.created_at, row.id) > (tensor.created_at, tensor.id)
        for row in rows
    )


def _find_descendants(session: ReadSession, target: Target) -> list[int]:
    """Revisions that declare the target, or one of its descendants, as their base; newest first.

    Only in domains that the target may refer to: private models elsewhere have no influence.
    """
    revisions: dict[int, None] = {}
    models, seen = [(target.repository_id, target.name)], {target.repository_id}
    for model, name in models:  # descendants are appended during the loop
        own = select(Revision.id).where(Revision.repository_id == model)
        rows = session.execute(
            select(Revision.id, Repository.id, Namespace.name + "/" + Repository.name)
            .join(Repository, Repository.id == Revision.repository_id)
            .join(Namespace, Namespace.id == Repository.namespace_id)
            .where(
                # The base may have been moved since it was named.
                or_(declares(name), Revision.declared_base_revision_id.in_(own)),
                Repository.domain_id.in_(target.domains),
                Repository.id != target.repository_id,
            )
            .order_by(Revision.id.desc())
            .limit(MAX_DESCENDANTS - len(revisions))
        )
        for revision, repository, full_name in rows:
            revisions[revision] = None
            if repository not in seen:
                seen.add(repository)
                models.append((repository, full_name))
        if len(revisions) >= MAX_DESCENDANTS:
            break
    return list(revisions)

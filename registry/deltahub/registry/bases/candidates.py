"""Finds stored revisions that may serve as bases of a revision, and loads their tensors."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from deltahub.codecs.frames.base_choice import BaseTensor
from deltahub.registry.catalog.weights import named_tensors, safetensors_files
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost, EntryNotFound
from deltahub.registry.lineage.similar import find_families
from deltahub.registry.lineage.target import Target, declares
from deltahub.registry.lineage.tensor_sketch import TensorSketch
from deltahub.registry.packs.locations import is_leaving, resolve
from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)

Origin = Literal["declared", "earlier", "detected"]

# Most tensors tried whose names differ from the target's only in the first component.
MAX_SAME_TAIL = 3
# Most revisions of the target's own history that are candidates.
EARLIER_REVISIONS = 3
# Names of all candidates together, about 600 bytes each: bounds the memory of one planner.
MAX_NAMES = 100_000
# Tensors that are located in one batch, because each would cost a transaction of its own.
MAX_EXPECTED = 12_000


@dataclass(frozen=True, slots=True)
class StoredTensor(BaseTensor):
    """A stored tensor under its name in a candidate's recipe; id: its row."""

    id: int
    depth: int


@dataclass(frozen=True)
class CandidateRevision:
    revision_id: int
    origin: Origin


@dataclass
class Candidate:
    """A stored revision's tensors: by name, also without its first component, shape and hash."""

    revision_id: int
    origin: Origin
    by_name: dict[str, StoredTensor] = field(default_factory=dict)
    by_shape: dict[tuple[int, ...], list[StoredTensor]] = field(default_factory=dict)
    by_tail: dict[str, list[StoredTensor]] = field(default_factory=dict)
    by_hash: dict[bytes, StoredTensor] = field(default_factory=dict)

    def add(self, tensor: StoredTensor) -> None:
        if tensor.name not in self.by_name:
            self.by_name[tensor.name] = tensor
            self.by_shape.setdefault(tensor.shape, []).append(tensor)
            self.by_tail.setdefault(_tail(tensor.name), []).append(tensor)
            self.by_hash.setdefault(tensor.hash, tensor)

    def with_other_prefix(self, name: str) -> list[StoredTensor]:
        """Tensors whose name differs only in the first component, such as an added `model.`."""
        bare = self.by_name.get(_tail(name))
        found = [bare] if bare is not None else []
        found += [*self.by_tail.get(name, ()), *self.by_tail.get(_tail(name), ())]
        return [tensor for tensor in found if tensor.name != name][:MAX_SAME_TAIL]


def find_candidates(
    session: Session, target: Target, sketches: Sequence[TensorSketch]
) -> list[CandidateRevision]:
    """The declared base, then the repository's earlier revisions, then detected families.

    A detected revision that declares the target's repository as its base is left out, so that a
    base does not become a delta of its own fine-tunes.
    """
    revision = session.get_one(Revision, target.revision_id)
    found: dict[int, Origin] = {}
    if revision.declared_base_revision_id is not None:
        found[revision.declared_base_revision_id] = "declared"
    for earlier in _earlier(session, revision):
        found.setdefault(earlier, "earlier")
    families = find_families(
        session, sketches, target.domains, exclude_repository=target.repository_id
    )
    for family in families:
        found.setdefault(family.revision_id, "detected")
    found.pop(target.revision_id, None)
    usable = _usable(session, target, found)
    return [CandidateRevision(r, origin) for r, origin in found.items() if r in usable]


def load_candidates(
    reg: Registry, reader: FileReader, target: Target, wanted: Iterable[CandidateRevision]
) -> list[Candidate]:
    """The candidates with the tensors that the target may refer to, at most MAX_NAMES together."""
    loaded: list[Candidate] = []
    room = MAX_NAMES
    for revision in wanted:
        candidate = _load(reg, reader, target, revision, room)
        room -= len(candidate.by_name)
        if candidate.by_name:
            loaded.append(candidate)
    likely = islice((t.id for c in loaded for t in c.by_name.values()), MAX_EXPECTED)
    reader.load_locations(target.domain_id, likely)
    return loaded


def _load(
    reg: Registry, reader: FileReader, target: Target, wanted: CandidateRevision, room: int
) -> Candidate:
    candidate = Candidate(wanted.revision_id, wanted.origin)
    with reg.db.read() as session:
        files = list(session.scalars(safetensors_files(wanted.revision_id)))
        namespace_id = session.scalar(
            select(Repository.namespace_id)
            .join(Revision, Revision.repository_id == Repository.id)
            .where(Revision.id == wanted.revision_id)
        )
    for file in files:
        try:
            refs = named_tensors(reader, file)[: room - len(candidate.by_name)]
        except EntryNotFound:
            continue  # the repository has just been deleted
        except DataLost as exc:
            log.warning("revision %d is no base: %s", wanted.revision_id, exc)
            continue
        with reg.db.read() as session:
            stored = resolve(session, target.domain_id, (ref.tensor for _, ref in refs))
        for name, ref in refs:
            tensor = stored.get(ref.tensor)
            # Frames that a client of another namespace encoded are not decoded for this one.
            if tensor is None or (tensor.is_foreign and namespace_id != target.namespace_id):
                continue
            if tensor.lost is not None:
                continue
            shape = tuple(ref.shape)
            candidate.add(
                StoredTensor(name, ref.dtype, shape, tensor.hash, tensor.id, tensor.depth)
            )
    return candidate


def _tail(name: str) -> str:
    """The name without its first component."""
    return name.split(".", 1)[-1]


def _earlier(session: Session, revision: Revision) -> list[int]:
    """Up to EARLIER_REVISIONS before this one, newest first: parents, or by time without them."""
    found: list[int] = []
    parent = revision.parent_commit
    while parent is not None and len(found) < EARLIER_REVISIONS:
        row = session.execute(
            select(Revision.id, Revision.parent_commit).where(
                Revision.repository_id == revision.repository_id, Revision.commit == parent
            )
        ).one_or_none()
        if row is None:
            break
        found.append(row.id)
        parent = row.parent_commit
    if not found:
        newest = (
            select(Revision.id)
            .where(Revision.repository_id == revision.repository_id, Revision.id < revision.id)
            .order_by(Revision.id.desc())
            .limit(EARLIER_REVISIONS)
        )
        found.extend(session.scalars(newest))
    return found


def _usable(session: Session, target: Target, found: Mapping[int, Origin]) -> set[int]:
    """Found revisions that the target may refer to, without detected descendants."""
    is_descendant = or_(
        declares(target.name), Revision.declared_base_revision_id == target.revision_id
    )
    rows = session.execute(
        select(Revision.id, is_descendant)
        .join(Repository, Repository.id == Revision.repository_id)
        .where(
            Revision.id.in_(list(found)),
            Repository.domain_id.in_(target.domains),
            ~is_leaving(),
        )
    )
    return {
        revision for revision, descends in rows if found[revision] != "detected" or not descends
    }

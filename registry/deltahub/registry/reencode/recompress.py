"""Encodes frames again that an older release, a lower effort or a client wrote: plan, then apply.

The re-planner first looks for bases of tensors without one, revision by revision, the newest
revision first. The other outdated tensors are encoded again against the bases that they have. Rows
remember what was tried, so a killed run continues, and a second run has nothing to do.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field

from sqlalchemy import select
from sqlalchemy.exc import NoResultFound

from deltahub.codecs.protocol import Effort
from deltahub.registry.access.repositories import find_repository
from deltahub.registry.catalog.weights import weight_tensors
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, FileTensor, Namespace, Repository, Revision, Tensor
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost, RepositoryNotFound
from deltahub.registry.failpoints import reached
from deltahub.registry.lineage.measured import measure_affected
from deltahub.registry.names import quoted
from deltahub.registry.packs.encoder_generation import generation_of
from deltahub.registry.reencode.frames import FrameReencoder
from deltahub.registry.reencode.replan import Replanner
from deltahub.registry.reencode.survey import Count, mark_tried, outdated_among, survey
from deltahub.registry.reencode.unreadable import Unreadable, describe
from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)

Report = Callable[[str, int, int], None]
"""report(stage, done bytes, total bytes): decoded bytes of tensors; called often."""


@dataclass(frozen=True)
class Group:
    """Outdated frames of one codec, version and effort. effort: "" if the codec has no efforts."""

    codec: str
    version: int
    effort: str
    frames: int
    stored_bytes: int
    decoded_bytes: int


@dataclass(frozen=True)
class Plan:
    """The work of a run. tensors: row -> size; to_mark: rows that only need to be marked."""

    effort: str
    groups: tuple[Group, ...]
    up_to_date: Count
    unreadable: tuple[Unreadable, ...]
    repository_id: int | None = None
    tensors: Mapping[int, int] = field(default_factory=dict)
    to_mark: Collection[int] = ()

    @property
    def total_bytes(self) -> int:
        return sum(self.tensors.values())

    def as_dict(self) -> dict[str, object]:
        """The plan as plain data, for JSON."""
        return {
            "effort": self.effort,
            "outdated": [asdict(group) for group in self.groups],
            "up_to_date": asdict(self.up_to_date),
            "tensors": len(self.tensors),
            "unreadable": [asdict(each) for each in self.unreadable],
        }


@dataclass
class Outcome:
    """The result of a run, in tensors.

    replanned: they found a base. replaced: they became smaller with the base they had, or without
    one. changed: another process changed or deleted them during the run.
    """

    replanned: int = 0
    replaced: int = 0
    not_smaller: int = 0
    changed: int = 0
    saved_bytes: int = 0
    failed: tuple[Unreadable, ...] = ()
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def plan_recompress(reg: Registry, reader: FileReader, repository: str | None = None) -> Plan:
    """The frames that this release's encoders may make smaller at the effort of the settings.

    repository: only tensors of its revisions. Changes nothing. InvalidName, RepositoryNotFound.
    """
    effort = reg.settings.effort
    repository_id = None
    if repository is not None:
        with reg.db.read() as session:
            row = find_repository(session, repository)
        if row is None:
            raise RepositoryNotFound(f"there is no repository {quoted(repository)}")
        repository_id = row.id
    found = survey(reg, effort, repository_id)
    groups = tuple(
        Group(codec, version, _effort_name(used_effort), **asdict(count))
        for (codec, version, used_effort), count in sorted(found.outdated.items())
    )
    return Plan(
        effort=effort.name.lower(),
        groups=groups,
        up_to_date=found.up_to_date,
        unreadable=describe(reg, reader, found.unreadable),
        repository_id=repository_id,
        tensors=found.tensors,
        to_mark=found.to_mark,
    )


def apply_recompress(
    reg: Registry,
    reader: FileReader,
    plan: Plan,
    report: Report = lambda stage, done, total: None,
) -> Outcome:
    """Carry out a plan. It may run beside a hub, and be run again after a kill at any moment."""
    work = _Work(reg, reader, plan, report)
    for batch in batches(sorted(plan.to_mark)):
        with reg.db.write() as session:
            mark_tried(session, batch, generation_of(reg.settings.effort))
    for revision_id in work.revisions():
        work.recompress_revision(revision_id)
    work.recompress_unlisted()
    return work.outcome()


def _effort_name(effort: int) -> str:
    known = {each.value: each.name.lower() for each in Effort}
    return known.get(effort, str(effort) if effort else "")


class _Work:
    """One run: its remaining tensors and its result."""

    def __init__(self, reg: Registry, reader: FileReader, plan: Plan, report: Report) -> None:
        self._reg = reg
        self._repository_id = plan.repository_id
        self._report = report
        self._reader = reader
        self._todo = dict(plan.tensors)
        self._total = plan.total_bytes
        self._done_bytes = 0
        self._outcome = Outcome()
        self._failed: dict[int, str] = {}

    def outcome(self) -> Outcome:
        self._outcome.failed = describe(self._reg, self._reader, self._failed)
        return self._outcome

    def revisions(self) -> list[int]:
        """The revisions with outdated tensors, the newest first.

        A newer revision may be a delta of an older one, whose chains must not become too long.
        """
        found: set[int] = set()
        query = select(Entry.revision_id).join(FileTensor, FileTensor.file_id == Entry.file_id)
        if self._repository_id is not None:
            query = query.join(Revision, Revision.id == Entry.revision_id).where(
                Revision.repository_id == self._repository_id
            )
        with self._reg.db.read() as session:
            for batch in batches(self._todo):
                found.update(
                    session.scalars(query.where(FileTensor.tensor_id.in_(batch)).distinct())
                )
        return sorted(found, reverse=True)

    def recompress_revision(self, revision_id: int) -> None:
        """Look for bases of the revision's standalone tensors, then encode the others again."""
        with self._reg.db.read() as session:
            name = session.scalar(
                select(Namespace.name + "/" + Repository.name)
                .join(Repository, Repository.namespace_id == Namespace.id)
                .join(Revision, Revision.repository_id == Repository.id)
                .where(Revision.id == revision_id)
            )
            held = select(FileTensor.tensor_id).join(Entry, Entry.file_id == FileTensor.file_id)
            held = held.where(Entry.revision_id == revision_id)
            rows = session.execute(
                select(Tensor.id, Tensor.domain_id).where(Tensor.id.in_(held))
            ).all()
            # The re-planner looks only at weights of the repository's own domain.
            standalone_weights = session.scalars(
                weight_tensors(revision_id)
                .join(Tensor, Tensor.id == FileTensor.tensor_id)
                .where(Tensor.depth == 0, File.domain_id == Tensor.domain_id)
            ).all()
        domains = {tensor: domain for tensor, domain in rows if tensor in self._todo}
        if name is None or not domains:
            return  # the revision was deleted, or a newer revision had the same tensors
        standalone = domains.keys() & standalone_weights
        if standalone:
            self._replan(name, revision_id, standalone)
            reached("recompress.replan.done")
        self._reencode(name, domains)

    def recompress_unlisted(self) -> None:
        """Encode tensors of no revision again: anchors, and tensors whose commit is to come."""
        domains: dict[int, int] = {}
        with self._reg.db.read() as session:
            for batch in batches(self._todo):
                rows = session.execute(
                    select(Tensor.id, Tensor.domain_id).where(Tensor.id.in_(batch))
                )
                domains.update((tensor, domain) for tensor, domain in rows)
        self._reencode("tensors of no revision", domains)

    def _replan(self, name: str, revision_id: int, standalone_weights: Collection[int]) -> None:
        stage = f"{name}: looking for bases"
        self._report(stage, self._done_bytes, self._total)
        switched = 0
        position: int | None = 0
        try:
            replanner = Replanner(self._reg, self._reader, revision_id, standalone_weights)
            while position is not None:
                step = replanner.step(position, lambda *_: self._report_progress(stage))
                position = step.next_position
                switched += step.switched
                self._outcome.saved_bytes += step.saved_bytes
        except (DataLost, NoResultFound) as exc:
            with self._reg.db.read() as session:
                is_there = session.get(Revision, revision_id) is not None
            if is_there and not isinstance(exc, DataLost):
                raise
            if is_there:
                self._outcome.notes.append(f"no bases were looked for in {name}: {exc}")
        self._outcome.replanned += switched
        if switched:
            measure_affected(self._reg, revision_id)

    def _reencode(self, name: str, domains: Mapping[int, int]) -> None:
        """Encode these rows again. domains: row -> its domain."""
        stage = f"{name}: coding"
        by_domain: dict[int, list[int]] = {}
        for tensor, domain in sorted(domains.items()):
            by_domain.setdefault(domain, []).append(tensor)

        def progress(tensor: int) -> None:
            self._done_bytes += self._todo.pop(tensor, 0)
            self._report_progress(stage)

        for domain, tensors in sorted(by_domain.items()):
            with self._reg.db.read() as session:
                left = outdated_among(session, tensors, generation_of(self._reg.settings.effort))
            for tensor in set(tensors).difference(left):  # the tensor has found a base
                progress(tensor)
            done = FrameReencoder(self._reg, self._reader, domain).run(left, progress)
            self._outcome.replaced += done.replaced
            self._outcome.not_smaller += done.not_smaller
            self._outcome.changed += done.changed
            self._outcome.saved_bytes += done.saved_bytes
            self._failed.update(done.failed)

    def _report_progress(self, stage: str) -> None:
        self._report(stage, self._done_bytes, self._total)

"""Ingest: stores the landed files of one revision as packs and recipes.

Its steps: scan every file; store packs until no tensor is missing; finish every file, that is,
verify it and switch it to its recipe. Until then the file is read from its landing. Each step may
be repeated, and may be interrupted by a crash at any line.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import select

from deltahub.codecs.files.recipe import TensorRef
from deltahub.codecs.files.split import SAFETENSORS_SUFFIX
from deltahub.codecs.frames import tensor_spec
from deltahub.registry import failpoints
from deltahub.registry.bases.planner import BaseChoice, BasePlanner
from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.models import File, Tensor
from deltahub.registry.db.session import WriteSession
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost, DeltaCycle
from deltahub.registry.ingest import scan as scans
from deltahub.registry.ingest.finish import finish_files
from deltahub.registry.ingest.repair_tensors import TensorSource, repair_tensors
from deltahub.registry.ingest.scan import Scan, landed_bytes
from deltahub.registry.jobs.progress import Progress, Report
from deltahub.registry.landings.damage import UploadDamaged, damage_of
from deltahub.registry.landings.reader import LandingReader
from deltahub.registry.packs.encode import Read
from deltahub.registry.packs.holds import hold_for_job, release_job
from deltahub.registry.packs.locations import resolve
from deltahub.registry.packs.switch import BaseGone, insert_tensors, store_and_switch
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound

log = logging.getLogger(__name__)

# Limits of one step that scans or finishes files: their number, and their bytes in all.
STEP_FILES: Final = 256
STEP_BYTES: Final = 8 << 20


class Ingest:
    """The ingest of one revision. Not thread-safe.

    report is called every few MiB with the stages scan, store and prove; check_cancel a few times a
    second. An exception of either stops the step and leaves garbage at most.
    Memory: four frames, and 1 KiB per tensor of the revision.
    """

    def __init__(
        self,
        reg: Registry,
        reader: FileReader,
        revision_id: int,
        job_id: str,
        *,
        report: Report = lambda stage, done, total: None,
        check_cancel: Callable[[], None] = lambda: None,
    ) -> None:
        self._reg = reg
        self._reader = reader
        self._revision_id = revision_id
        self._job_id = job_id
        self._progress = Progress(report, check_cancel)
        self._planner: BasePlanner | None = None
        # Tensors that are not stored yet; None while they are not known.
        self._todo: deque[TensorSource] | None = None
        self._total_bytes = 0

    def run(self) -> None:
        """Do all remaining steps, one after the other."""
        for file_ids in self.pending_files():
            self.scan(file_ids)
        while self.store_next_pack():
            pass
        damaged: DataLost | None = None
        for file_ids in self.pending_files():
            try:
                self.finish(file_ids)
            except DataLost as exc:
                damaged = damaged or exc
        if damaged is not None:
            raise damaged
        self.release()

    def pending_files(self) -> list[list[int]]:
        """The revision's files that are not ingested yet, one list per step, in order of path.

        Small files share the transactions of a step. A large file has a step of its own.
        """
        steps: list[list[int]] = []
        n_bytes = 0
        for file, _ in self._pending():
            if not steps or len(steps[-1]) == STEP_FILES or n_bytes + file.size > STEP_BYTES:
                steps.append([])
                n_bytes = 0
            steps[-1].append(file.id)
            n_bytes += file.size
        return steps

    def scan(self, file_ids: Sequence[int]) -> None:
        """Parse and hash these files; the results are kept on the disk.

        A damaged file is skipped, here and in store_next_pack: finish() raises its error.
        """
        for _ in self._scanned(file_ids):
            pass

    def store_next_pack(self) -> bool:
        """Store a pack of missing tensors (several for a large tensor); whether any are left."""
        try:
            if self._todo is None:
                self._todo = self._find_missing()
            if self._todo:
                self._store(self._todo)
        except (ObjectNotFound, UploadDamaged):
            # Another job has finished a file of this revision and deleted its landing, or a landing
            # is damaged: the other files are stored all the same.
            self._todo = None
            return True
        except BaseException:
            self._todo = None
            raise
        return bool(self._todo)

    def finish(self, file_ids: Sequence[int]) -> None:
        """Rebuild each file from its recipe, compare its SHA-256, and only then switch to it.

        DataLost if a file cannot be rebuilt. That file stays as it is; the others are switched.
        """
        damaged: list[DataLost] = []
        files = list(self._scanned(file_ids, damaged, with_kept=True))
        total = sum(file.size for file, _ in files)
        progress = self._counting("prove", total)
        # Without anything in memory of the bytes that have to be verified.
        reader = FileReader(self._reg)
        lost = finish_files(self._reg, reader, files, progress)
        if lost:
            self._repair(file_ids, total)
            damaged = []
            again = self._scanned(file_ids, damaged, with_kept=True)
            progress = self._counting("prove", total)
            lost = finish_files(self._reg, FileReader(self._reg), again, progress)
        damaged += lost
        damaged[:0] = [damage_of(f.sha256) for f, _ in self._pending(file_ids) if f.state == "lost"]
        for exc in damaged:
            log.error("job=%s cannot ingest: %s", self._job_id, exc)
        if damaged:
            raise damaged[0]

    def _repair(self, file_ids: Sequence[int], total: int) -> None:
        """Store the damaged tensors of these files again."""
        sources = (
            item for file, scan in self._scanned(file_ids) for item in self._sources_of(file, scan)
        )
        progress = self._counting("prove", total)
        repair_tensors(self._reg, self._reader, sources, self._job_id, progress)

    def release(self) -> None:
        """End the job's holds: the finished files refer to the tensors now."""
        with self._reg.db.write_beside() as session:
            release_job(session, self._job_id)

    def _pending(self, file_ids: Sequence[int] | None = None) -> list[tuple[File, str]]:
        """The files (of these ids, or all) that are not ingested, with a path, in order of path.

        Also those whose uploads are damaged: the job must not succeed without them.
        """
        is_damaged = (File.state == "lost") & File.landing_id.is_not(None)
        query = (
            select(File, Entry.path)
            .join(Entry, Entry.file_id == File.id)
            .where(Entry.revision_id == self._revision_id, (File.state == "landed") | is_damaged)
            .order_by(Entry.path)
        )
        if file_ids is not None:
            query = query.where(File.id.in_(file_ids))
        files: dict[int, tuple[File, str]] = {}
        with self._reg.db.read() as session:
            for file, path in session.execute(query):
                # A file may have several paths. One that ends in .safetensors is preferred.
                if file.id not in files or path.endswith(SAFETENSORS_SUFFIX):
                    files[file.id] = (file, path)
        return list(files.values())

    def _scanned(
        self,
        file_ids: Sequence[int] | None = None,
        damaged: list[DataLost] | None = None,
        *,
        with_kept: bool = False,
    ) -> Iterator[tuple[File, Scan]]:
        """Scans of the files that are not ingested. Errors of damaged files go to `damaged`.

        with_kept: also the kept scans of files whose uploads are damaged. Their tensors may all be
        stored, so that the uploads are not needed any more.
        """
        pending = self._pending(file_ids)
        progress = self._counting("scan", sum(file.size for file, _ in pending))
        faults: list[DataLost] = [] if damaged is None else damaged
        for file, path in pending:
            try:
                if file.state != "lost":
                    found = scans.scan(self._reg, file, path, progress)
                elif not with_kept or (kept := scans.load(self._reg, file)) is None:
                    raise damage_of(file.sha256)
                else:
                    found = kept
            except DataLost as exc:
                faults.append(exc)
                continue
            except ObjectNotFound:
                continue  # another job has finished the file and deleted its landing
            yield file, found

    def _counting(self, stage: str, total: int) -> Callable[[int], None]:
        """A progress function that takes the bytes done since its last call."""
        done = 0

        def progress(n: int) -> None:
            nonlocal done
            done = min(done + n, total)  # files beyond a recipe's limits are hashed twice
            self._progress(stage, done, total)

        return progress

    def _find_missing(self) -> deque[TensorSource]:
        """The tensors that are lost, or not stored in a domain they may use. Others get a hold."""
        items: dict[tuple[int, bytes], TensorSource] = {}
        for file, scan in self._scanned():
            for item in self._sources_of(file, scan):
                items.setdefault((item.domain_id, item.ref.tensor), item)
        self._total_bytes = sum(item.ref.size for item in items.values())
        missing: deque[TensorSource] = deque()
        # Grouped by domain, because a pack holds frames of one domain. The files' order is kept.
        for domain_id in sorted({domain for domain, _ in items}):
            hashes = [content for domain, content in items if domain == domain_id]
            for part in batches(hashes, PART_TENSORS):
                found = self._hold_stored(domain_id, part)
                for content in part:
                    item, row = items[domain_id, content], found.get(content)
                    if row is None:
                        missing.append(item)
                    elif row.lost is not None:
                        # Its row gets the new frames, in the domain where it is.
                        missing.append(replace(item, domain_id=row.domain_id))
        return deque(sorted(missing, key=lambda item: item.domain_id))

    @retried
    def _hold_stored(self, domain_id: int, part: Sequence[bytes]) -> dict[bytes, Tensor]:
        """Content id -> row of each tensor that is stored; these get a hold."""
        with self._reg.db.write_beside() as session:
            found = resolve(session, domain_id, part)
            ids = [tensor.id for tensor in found.values()]
            hold_for_job(session, ids, self._job_id, self._reg.settings.hold_ttl_s)
        return found

    def _sources_of(self, file: File, scan: Scan) -> Iterator[TensorSource]:
        landed = landed_bytes(self._reg, file)
        for start, ref in scan.placed_tensors():
            yield TensorSource(file.domain_id, ref, _reader_at(landed, start))
        data, size = scan.recipe_bytes, len(scan.recipe_bytes)
        ref = TensorRef(scan.recipe_id, size, "U8", (size,), None)
        yield TensorSource(file.domain_id, ref, _reader_of(data))

    def _store(self, todo: deque[TensorSource]) -> None:
        try:
            self._store_pack(todo, with_bases=True)
        except (BaseGone, DeltaCycle, DataLost) as exc:
            # A base was deleted or became deeper after it was chosen, or it cannot be read.
            log.info("job=%s stores a pack without bases: %s", self._job_id, exc)
            self._store_pack(todo, with_bases=False)

    def _store_pack(self, todo: deque[TensorSource], *, with_bases: bool) -> None:
        """Store the first tensors of todo and remove them from it."""
        domain_id = todo[0].domain_id
        n_stored, raw_bytes = 0, 0
        done = self._total_bytes - sum(item.ref.size for item in todo)

        def progress(n: int) -> None:
            nonlocal done
            done += n
            self._progress("store", done, self._total_bytes)

        with PackSpool(self._reg, self._reader, domain_id) as spool:
            for item in todo:
                if item.domain_id != domain_id:
                    break
                # Estimate the next tensor's encoded size by the ratio of the tensors before it.
                ratio = spool.size_bytes / raw_bytes if raw_bytes else 0.0
                if spool.size_bytes + item.ref.size * ratio > self._reg.settings.pack_bytes:
                    break
                choice = self._choose(item) if with_bases else None
                spec = tensor_spec(item.ref.tensor, item.ref.dtype, item.ref.shape)
                plan_of = None if choice is None else choice.frame_plan
                spool.encode(spec, item.read, plan_of, progress)
                n_stored += 1
                raw_bytes += item.ref.size
            store_and_switch(self._reg, spool, self._insert, only_adds=True, is_split=True)
        failpoints.reached("ingest.publish.after_commit")
        for _ in range(n_stored):
            todo.popleft()

    def _insert(self, session: WriteSession, sealed: SealedPacks) -> None:
        """Insert the tensors' rows, held for the job until the files refer to them."""
        settings = self._reg.settings
        ids = insert_tensors(session, sealed, settings.max_depth)
        hold_for_job(session, ids.values(), self._job_id, settings.hold_ttl_s)
        failpoints.reached("ingest.publish.before_commit")

    def _choose(self, item: TensorSource) -> BaseChoice | None:
        if item.ref.name is None:
            return None
        if self._planner is None:
            self._planner = BasePlanner(self._reg, self._reader, self._revision_id)
        # A file shared with a public repository must not depend on private tensors.
        if item.domain_id != self._planner.target.domain_id:
            return None
        return self._planner.plan(item.ref.name, item.ref.dtype, item.ref.shape, item.read)


def _reader_at(landed: LandingReader, start: int) -> Read:
    return lambda first_byte, out: landed.read_into(start + first_byte, out)


def _reader_of(data: bytes) -> Read:
    def read(first_byte: int, out: memoryview) -> None:
        out[:] = data[first_byte : first_byte + out.nbytes]

    return read

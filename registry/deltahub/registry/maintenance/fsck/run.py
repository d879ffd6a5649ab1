"""Runs all checks of fsck. They change nothing; repair.py marks what is lost.

fsck may run beside a working hub. It checks a suspect row or object again before it reports it,
because an upload or gc may have changed it. Damage of the database itself is reported first, and
stops no more than the checks that meet it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.maintenance.fsck.bytes import (
    check_copies,
    check_file_bytes,
    check_landing_bytes,
    check_packs,
    check_recipes,
    check_tensors,
    check_xorb_bytes,
)
from deltahub.registry.maintenance.fsck.cursor import Cursor, marks_of
from deltahub.registry.maintenance.fsck.database import (
    CheckRunner,
    check_file,
    check_schema,
    check_values,
    stage_name,
)
from deltahub.registry.maintenance.fsck.findings import CODES, Finding, Findings
from deltahub.registry.maintenance.fsck.frames import check_bounds, check_coverage
from deltahub.registry.maintenance.fsck.kits import check_kit_bytes, check_kit_sizes
from deltahub.registry.maintenance.fsck.lost import check_lost
from deltahub.registry.maintenance.fsck.named import MOST_NAMED, with_names, without_advice
from deltahub.registry.maintenance.fsck.objects import check_indexes, check_objects
from deltahub.registry.maintenance.fsck.rows import check_rows
from deltahub.registry.maintenance.fsck.trees import check_trees
from deltahub.registry.packs.reading.chain import VIEW_DEPTH
from deltahub.registry.registry import Registry

__all__ = ["CODES", "EXIT_CLEAN", "EXIT_ERROR", "EXIT_FINDINGS", "Finding", "fsck"]

EXIT_CLEAN = 0
EXIT_FINDINGS = 1
EXIT_ERROR = 2


def fsck(
    reg: Registry,
    *,
    read_data: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
    resumed: Path | None = None,
) -> Iterator[Finding]:
    """Yield each inconsistency when it is found.

    read_data: also read, decode and hash every byte. progress(stage) is called before each stage.
    resumed: a file for the place that the run has reached, from which a later run with this file
    goes on; its findings so far come first. InvalidRequest if the file is not such a place.
    """
    cursor = Cursor()
    if resumed is not None:
        cursor = Cursor.load(resumed, read_data=read_data, hubs=marks_of(reg))
    yield from list(cursor.findings)
    runner = CheckRunner(cursor.findings)
    progress(stage_name(reg.db))
    yield from runner.run("the database", lambda: check_file(reg.db))
    has_schema = True
    for finding in runner.run("the schema", lambda: check_schema(reg.db)):
        has_schema = False
        yield finding
    if not has_schema:
        return
    # A new reader, because the cache of an older one would hide damage in the store.
    reader = FileReader(reg)
    reader.marks_damage = False
    checks: dict[str, Callable[[], Findings]] = {
        "values": lambda: check_values(reg.db),
        "rows": lambda: _rows(reg),
        "tensors' frames": lambda: check_coverage(reg, cursor),
        "packs' frames": lambda: check_bounds(reg, cursor),
        "trees": lambda: check_trees(reg, cursor),
        "objects": lambda: check_objects(reg),
        "pack indexes": lambda: check_indexes(reg, cursor),
        "recipes": lambda: check_recipes(reg, reader, cursor),
        "losses": lambda: check_lost(reg),
        "kits": lambda: check_kit_sizes(reg),
    }
    if read_data:
        checks |= {
            "packs": lambda: check_packs(reg, cursor),
            "second copies": lambda: check_copies(reg),
            "tensors": lambda: check_tensors(reg, reader, cursor),
            "files": lambda: check_file_bytes(reg, reader, cursor),
            "uploads": lambda: check_landing_bytes(reg),
            "xorbs": lambda: check_xorb_bytes(reg),
            "kits' bytes": lambda: check_kit_bytes(reg),
        }
    cursor.check_stage(checks)
    known = {finding.key for finding in cursor.findings}
    for stage in cursor.left(list(checks)):
        progress(stage)
        for finding in map(without_advice, runner.run(stage, checks[stage])):
            # Objects and pack indexes both find a missing pack; a page is checked again if the run
            # ended in it.
            if finding.key not in known:
                known.add(finding.key)
                named = finding
                if len(cursor.findings) < MOST_NAMED:
                    named = with_names(reg, finding)
                cursor.findings.append(named)
                yield named


def _rows(reg: Registry) -> Findings:
    with reg.db.read() as session:
        yield from check_rows(session, reg.settings.max_depth + VIEW_DEPTH)

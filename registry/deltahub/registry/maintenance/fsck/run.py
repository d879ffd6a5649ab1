"""Runs all checks of fsck. They change nothing; repair.py marks what is lost.

fsck may run beside a working hub. It checks a suspect row or object again before it reports it,
because an upload or gc may have changed it. Damage of the database itself is reported first, and
stops no more than the checks that meet it.
"""

from collections.abc import Callable, Iterator

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
from deltahub.registry.maintenance.fsck.database import (
    CheckRunner,
    check_file,
    check_schema,
    check_values,
    stage_name,
)
from deltahub.registry.maintenance.fsck.findings import CODES, Finding, Findings
from deltahub.registry.maintenance.fsck.lost import check_lost
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
) -> Iterator[Finding]:
    """Yield each inconsistency when it is found.

    read_data: also read, decode and hash every byte. progress(stage) is called before each stage.
    """
    runner = CheckRunner()
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
    stages: list[tuple[str, Callable[[], Findings]]] = [
        ("values", lambda: check_values(reg.db)),
        ("rows", lambda: _rows(reg)),
        ("trees", lambda: check_trees(reg)),
        ("objects", lambda: check_objects(reg)),
        ("pack indexes", lambda: check_indexes(reg)),
        ("recipes", lambda: check_recipes(reg, reader)),
        ("losses", lambda: check_lost(reg)),
    ]
    if read_data:
        stages += [
            ("packs", lambda: check_packs(reg)),
            ("second copies", lambda: check_copies(reg)),
            ("tensors", lambda: check_tensors(reg, reader)),
            ("files", lambda: check_file_bytes(reg, reader)),
            ("uploads", lambda: check_landing_bytes(reg)),
            ("xorbs", lambda: check_xorb_bytes(reg)),
        ]
    missing: set[str] = set()
    for stage, check in stages:
        progress(stage)
        for finding in runner.run(stage, check):
            if finding.code == "pack_missing":
                if finding.target in missing:
                    continue  # the objects and the pack indexes both find it
                missing.add(finding.target)
            yield finding


def _rows(reg: Registry) -> Findings:
    with reg.db.read() as session:
        yield from check_rows(session, reg.settings.max_depth + VIEW_DEPTH)

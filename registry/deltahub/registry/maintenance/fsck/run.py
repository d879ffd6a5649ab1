"""Runs all checks of fsck. fsck fixes nothing.

fsck may run beside a working hub. It checks a suspect row or object again before it reports it,
because an upload or gc may have changed it.
"""

from collections.abc import Callable, Iterator

from deltahub.registry.db import schema
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.maintenance.fsck.bytes import (
    check_file_bytes,
    check_landing_bytes,
    check_packs,
    check_recipes,
    check_tensors,
    check_xorb_bytes,
)
from deltahub.registry.maintenance.fsck.findings import CODES, Finding, Findings
from deltahub.registry.maintenance.fsck.objects import check_indexes, check_objects
from deltahub.registry.maintenance.fsck.rows import check_rows
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
    schema.require_head(reg.db)
    # A new reader, because the cache of an older one would hide damage in the store.
    reader = FileReader(reg)
    stages: list[tuple[str, Callable[[], Findings]]] = [
        ("rows", lambda: _rows(reg)),
        ("objects", lambda: check_objects(reg)),
        ("pack indexes", lambda: check_indexes(reg)),
        ("recipes", lambda: check_recipes(reg, reader)),
    ]
    if read_data:
        stages += [
            ("packs", lambda: check_packs(reg)),
            ("tensors", lambda: check_tensors(reg, reader)),
            ("files", lambda: check_file_bytes(reg, reader)),
            ("uploads", lambda: check_landing_bytes(reg)),
            ("xorbs", lambda: check_xorb_bytes(reg)),
        ]
    for stage, check in stages:
        progress(stage)
        yield from check()


def _rows(reg: Registry) -> Findings:
    with reg.db.read() as session:
        yield from check_rows(session, reg.settings.max_depth)

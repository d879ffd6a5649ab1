"""Names the files that need what a finding is about, and takes advice to run fsck out of texts."""

import re
from dataclasses import replace
from typing import Final

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from deltahub.registry.db.models import File
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import RegistryError
from deltahub.registry.losses.findings import Affected, affected_by, affected_files
from deltahub.registry.maintenance.fsck.findings import Finding
from deltahub.registry.registry import Registry

# Files that a finding names. To name the files of thousands of findings would take hours.
_MOST_FILES: Final = 3
MOST_NAMED: Final = 100
_ADVICE: Final = re.compile("[;:] run `?deltahub fsck`?(?: --read-data)?(?=[ ;,.)]|$)")
# The code of a finding begins with the kind of its target. Others have names in their text.
_KINDS: Final = {
    "file": "file",
    "recipe": "file",
    "landing": "file",
    "pack": "pack",
    "copy": "pack",
    "tensor": "tensor",
    "frame_header": "tensor",
}
_NAMED_ALREADY: Final = ("file_lost", "tensor_lost")


def without_advice(finding: Finding) -> Finding:
    """The finding without "run deltahub fsck", which is what runs."""
    return replace(finding, text=_ADVICE.sub("", finding.text))


def with_names(reg: Registry, finding: Finding) -> Finding:
    """The finding with some of the files that need its target, if that can be told."""
    kind = _KINDS.get(finding.code) or _KINDS.get(finding.code.partition("_")[0])
    if kind is None or finding.code in _NAMED_ALREADY:
        return finding
    try:
        with reg.db.read() as session:
            found = _affected(session, kind, finding.target)
    except (RegistryError, SQLAlchemyError, ValueError):
        return finding  # of a damaged database
    return replace(finding, files=found.names[:_MOST_FILES], n_files=found.n_names)


def _affected(session: ReadSession, kind: str, target: str) -> Affected:
    if kind == "file":
        return affected_files(session, select(File.id).where(File.sha256 == target))
    return affected_by(session, kind, target)

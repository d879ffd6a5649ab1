"""Which files a client need not send, because a commit would find them on the hub, whole."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.access.visibility import readable_files
from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.models import File, FileTensor, Frame, Landing, Pack, Repository
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import InvalidRequest, LimitExceeded
from deltahub.registry.losses import second_copies
from deltahub.registry.losses.marks import mark_packs, mark_tensors
from deltahub.registry.losses.presence import check_store_is_there, is_missing, is_of_size
from deltahub.registry.names import validate_sha256
from deltahub.registry.packs.holds import hold_for_user
from deltahub.registry.packs.locations import closure
from deltahub.registry.quotas.limits import check_push
from deltahub.registry.quotas.usage import new_bytes
from deltahub.registry.registry import Registry
from deltahub.registry.uploads.committable import complete_uploads, keep_uploads
from deltahub.registry.uploads.landing import promise

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Found:
    """The requested files that the hub has for the caller."""

    repository: Repository
    have: list[str]  # SHA-256
    uploads: list[Landing]
    files: list[File]

    @property
    def recipes(self) -> list[int]:
        """Row ids of the files' recipes, which holds of the files refer to."""
        return [file.recipe_tensor_id for file in self.files if file.recipe_tensor_id is not None]


def query_and_keep(
    reg: Registry, caller: Caller | None, name: str, files: Sequence[tuple[str, int]]
) -> list[str]:
    """SHA-256s of those (SHA-256, size in bytes) that a commit to the repository would accept.

    The order is kept. A commit accepts the caller's own uploads, and files that the repository may
    refer to and the caller may read. Files that are missing, unreadable or of another size are left
    out. A named upload is kept for upload_ttl_s from now. A named file is held for hold_ttl_s, even
    if every repository that lists it is deleted. A file that is not ingested yet cannot be held: it
    is deleted with the last of these repositories, and the commit then fails with upload_not_found.
    A file that needs a pack that the store has lost is left out, and marked as lost.
    """
    caller = require_writer(caller)
    if len(files) > reg.settings.max_operations:
        limit = reg.settings.max_operations
        raise LimitExceeded(f"a query names at most {limit} files, not {len(files)}")
    for sha256, size in files:
        validate_sha256(sha256)
        if size < 0:
            raise InvalidRequest(f"a file cannot have {size} bytes")
    check_quota(reg, caller, name, dict(files))
    have: list[str] = []
    # In parts, each in a short transaction. An empty query still raises if the repository does not
    # exist or the caller may not write to it.
    for part in batches(dict(files).items(), PART_TENSORS) if files else ([],):
        cancellation.check()
        have += _keep(reg, caller, name, dict(part))
    return have


def check_quota(reg: Registry, caller: Caller, name: str, sizes: Mapping[str, int]) -> None:
    """QuotaExceeded if these files, SHA-256 -> size, are too much for the repository's namespace.

    Asked before the client sends them; the commit asks again.
    """
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        n_bytes = new_bytes(session, repository.id, sizes)
        check_push(session, reg.settings, repository.namespace_id, n_bytes)


def _keep(reg: Registry, caller: Caller, name: str, sizes: Mapping[str, int]) -> list[str]:
    with reg.db.read() as session:
        found = _find(session, caller, name, sizes)
    if mark_missing(reg, found.files):
        with reg.db.read() as session:
            found = _find(session, caller, name, sizes)
    if not found.uploads and not found.recipes:
        return found.have
    # Repeated in the write transaction, so that nothing deleted in the meantime is promised.
    with reg.db.write_beside() as session:
        keep_uploads(session, caller, [upload.sha256 for upload in found.uploads])
        found = _find(session, caller, name, sizes)
        for upload in found.uploads:
            promise(upload, reg.settings.upload_ttl_s)
        ttl_s = reg.settings.hold_ttl_s
        hold_for_user(session, found.recipes, caller.user_id, found.repository.id, ttl_s)
    return found.have


def _find(session: ReadSession, caller: Caller, name: str, sizes: Mapping[str, int]) -> _Found:
    repository = load_repository(session, caller, name, "write")
    uploads = complete_uploads(session, caller, sizes.keys())
    files = readable_files(session, caller, repository, sizes.keys() - uploads.keys())
    here: dict[str, Landing | File] = {**uploads, **files}
    have = [
        sha256 for sha256, size in sizes.items() if sha256 in here and here[sha256].size == size
    ]
    return _Found(
        repository,
        have,
        [uploads[sha256] for sha256 in have if sha256 in uploads],
        [files[sha256] for sha256 in have if sha256 in files],
    )


def mark_missing(reg: Registry, files: Iterable[File]) -> bool:
    """Mark what is lost of these files, if packs of theirs are missing or cut short.

    files: only such as the caller may read, because the time that this takes tells about them.
    Returns whether something was marked. Only asks the store for the sizes of the packs, and reads
    nothing from them. StoreSeemsAway if the store has less than half of the hub's packs.
    """
    is_marked = False
    for part in batches(file.id for file in files if file.state == "ingested"):
        cancellation.check()
        is_marked |= _mark_missing_of(reg, part)
    return is_marked


def _mark_missing_of(reg: Registry, file_ids: Collection[int]) -> bool:
    with reg.db.read() as session:
        packs = _packs_of(session, file_ids)
    missing = [
        pack
        for pack, size in sorted(packs.items())
        if not is_of_size(reg, pack, size) and not second_copies.is_whole(reg, pack, size)
    ]
    if not missing:
        return False
    with reg.db.read() as session:
        live = session.scalars(select(Pack.id).where(Pack.state == "live")).all()
    check_store_is_there(sum(is_missing(reg, pack) for pack in live), len(live))
    with reg.db.write() as session:
        tensors = mark_packs(session, missing, "pack_missing")
        mark_tensors(session, tensors)
    log.error(
        "packs %s are missing from the store, or cut short: their %d tensors are marked as lost; "
        "run deltahub fsck --repair, which names their files",
        ", ".join(missing),
        len(tensors),
    )
    return True


def _packs_of(session: ReadSession, file_ids: Collection[int]) -> dict[str, int]:
    """The live packs that are needed to rebuild these files, and their sizes in bytes."""
    tensors = session.scalars(select(FileTensor.tensor_id).where(FileTensor.file_id.in_(file_ids)))
    packs: dict[str, int] = {}
    for batch in batches(closure(session, set(tensors))):
        cancellation.check()
        rows = session.execute(
            select(Pack.id, Pack.size)
            .join(Frame, Frame.pack_id == Pack.id)
            .where(Frame.tensor_id.in_(batch), Pack.state == "live")
            .distinct()
        )
        packs.update((pack, size) for pack, size in rows)
    return packs

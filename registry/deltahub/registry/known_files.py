"""Which files a caller need not send because a commit would find them here."""

from collections.abc import Sequence
from datetime import timedelta

from deltahub.registry.db.models import utc_now
from deltahub.registry.errors import InvalidRequest, LimitExceeded
from deltahub.registry.holds import hold_for_user
from deltahub.registry.paths import validate_sha256
from deltahub.registry.permissions import Caller, readable_files, require_writer
from deltahub.registry.registry import Registry
from deltahub.registry.repositories import load_repository
from deltahub.registry.trees import complete_uploads


def query_and_keep(
    reg: Registry, caller: Caller | None, name: str, files: Sequence[tuple[str, int]]
) -> list[str]:
    """Which of (SHA-256, size in bytes) a commit to the repository would accept, in order.

    They are what a commit resolves: the caller's own uploads, and files that the repository may
    refer to and the caller may read. Everything else is absent, also what is somebody's secret or
    has another size. An upload that is named is kept for upload_ttl_s from now, a file by a hold
    for hold_ttl_s, even if every repository that lists it is deleted. One whose ingest is not over
    has nothing to hold yet: it goes with the last of these repositories, and the commit then says
    upload_not_found.
    """
    caller = require_writer(caller)
    if len(files) > reg.settings.max_operations:
        limit = reg.settings.max_operations
        raise LimitExceeded(f"a query names at most {limit} files, not {len(files)}")
    for sha256, size in files:
        validate_sha256(sha256)
        if size < 0:
            raise InvalidRequest(f"a file cannot have {size} bytes")
    hashes = {sha256 for sha256, _ in files}
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "write")
        uploads = complete_uploads(session, caller, hashes)
        known = readable_files(session, caller, repository, hashes - uploads.keys())
        sizes = {sha256: upload.size for sha256, upload in uploads.items()}
        sizes |= {sha256: file.size for sha256, file in known.items()}
        have = [sha256 for sha256, size in dict(files).items() if sizes.get(sha256) == size]
        expires_at = utc_now() + timedelta(seconds=reg.settings.upload_ttl_s)
        recipes = []
        for sha256 in have:
            if sha256 in uploads:
                uploads[sha256].expires_at = expires_at
            elif (recipe := known[sha256].recipe_tensor_id) is not None:
                recipes.append(recipe)
        hold_for_user(session, recipes, caller.user_id, repository.id, reg.settings.hold_ttl_s)
    return have

"""Which stored tensors a caller may use for a repository by naming their content ids."""

from collections.abc import Iterable, Mapping, Sequence

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.access.visibility import readable_tensors
from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.models import Repository, Tensor
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import InvalidRequest, LimitExceeded
from deltahub.registry.packs.holds import hold_for_user
from deltahub.registry.registry import Registry

HASH_BYTES = 32


def find_readable(
    session: ReadSession, caller: Caller | None, repository: Repository, ids: Iterable[bytes]
) -> dict[bytes, Tensor]:
    """Content id -> tensor, for those that the caller may claim for the repository.

    Both missing and unreadable tensors are left out of the result.
    """
    return readable_tensors(session, caller, repository, list(ids))


def query_and_hold(
    reg: Registry, caller: Caller | None, name: str, tensors: Sequence[tuple[bytes, int]]
) -> list[bytes]:
    """Content ids of those (content id, size in bytes) that the hub has for the repository.

    The order is kept. The tensors are held for hold_ttl_s from now, so that a commit may follow.
    """
    caller = require_writer(caller)
    if len(tensors) > reg.settings.max_query_tensors:
        limit = reg.settings.max_query_tensors
        raise LimitExceeded(f"a query names at most {limit} tensors, not {len(tensors)}")
    if any(len(content) != HASH_BYTES or size < 1 for content, size in tensors):
        raise InvalidRequest("a tensor is named by 32 bytes of BLAKE3 and a size of 1 or more")
    have: dict[bytes, int] = {}
    # An empty query still raises if the repository does not exist.
    for part in batches(tensors, PART_TENSORS) if tensors else ([],):
        cancellation.check()
        with reg.db.write_beside() as session:
            repository = load_repository(session, caller, name, "write")
            found = find_readable(session, caller, repository, (content for content, _ in part))
            here = {
                content: found[content].id for content, size in part if _has(found, content, size)
            }
            ttl_s = reg.settings.hold_ttl_s
            hold_for_user(session, here.values(), caller.user_id, repository.id, ttl_s)
        have |= here
    return list(have)


def _has(found: Mapping[bytes, Tensor], content: bytes, size: int) -> bool:
    return content in found and found[content].size == size

"""Refuses uploads that cannot succeed, before a client begins to send them.

Some clients repeat a refused upload for minutes, or do not show why it was refused. What they ask
before an upload they ask once, and they show the answer.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import select

from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.access.visibility import sharing_domains
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, Landing
from deltahub.registry.errors import LimitExceeded, StorageFull
from deltahub.registry.quotas.limits import check_push
from deltahub.registry.registry import Registry
from deltahub.registry.uploads import limits


def check_files(reg: Registry, caller: Caller | None, sizes: Mapping[str, int]) -> None:
    """Check that the caller may announce these files: SHA-256 -> size in bytes.

    LimitExceeded if the user has too many uploads; StorageFull.
    """
    caller = require_writer(caller)
    _check(reg, caller, list(limits.unannounced(reg, caller, sizes).values()))


def check_sizes(reg: Registry, caller: Caller | None, name: str, sizes: Sequence[int]) -> None:
    """As check_files(), of files for the repository `name` whose SHA-256 the client has not sent.

    A file that has the size of a known file may be that file, which needs no upload. So a check
    that fails is repeated without such files.
    """
    caller = require_writer(caller)
    try:
        _check(reg, caller, sizes)
        _check_quota(reg, caller, name, sizes)
    except (LimitExceeded, StorageFull):
        known = _known_sizes(reg, caller, name, sizes)
        unknown = [size for size in sizes if size not in known]
        _check(reg, caller, unknown)
        _check_quota(reg, caller, name, unknown)


def _check_quota(reg: Registry, caller: Caller, name: str, sizes: Sequence[int]) -> None:
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        check_push(session, reg.settings, repository.namespace_id, sum(sizes))


def _check(reg: Registry, caller: Caller, sizes: Sequence[int]) -> None:
    if sizes:
        limits.require_room(reg, reg.spool.local_bytes(sizes))
        limits.check(reg, caller, len(sizes), sum(sizes))


def _known_sizes(reg: Registry, caller: Caller, name: str, sizes: Sequence[int]) -> set[int]:
    """The sizes that an upload of the caller has, or a file that the repository may refer to."""
    known: set[int] = set()
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        domains = sharing_domains(session, repository)
        for batch in batches(sizes):
            known.update(
                session.scalars(
                    select(Landing.size).where(
                        Landing.user_id == caller.user_id, Landing.size.in_(batch)
                    )
                )
            )
            known.update(
                session.scalars(
                    select(File.size)
                    .where(File.domain_id.in_(domains), File.size.in_(batch))
                    .distinct()
                )
            )
    return known

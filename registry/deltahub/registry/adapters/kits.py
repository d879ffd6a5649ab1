"""Kits: what a move of an adapter to another base needs, and no reader of the hub may see.

A kit belongs to a repository, one at most. It has a discriminator and examples of private data, so
that it is no file of any revision: it is rows of tables of its own, which are deleted with the
repository, and which workers alone read.
"""

import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import IO, Any, Final

from sqlalchemy import delete, insert, select

from deltahub.registry import cancellation
from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed, full_name
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.adapters.files import CONFIG, WEIGHTS
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.comparisons import AdapterKit, AdapterKitPart
from deltahub.registry.errors import (
    Conflict,
    DataLost,
    EntryNotFound,
    HashMismatch,
    InvalidRequest,
    LimitExceeded,
)
from deltahub.registry.names import quoted
from deltahub.registry.quotas.limits import check_room, lock_quota
from deltahub.registry.quotas.usage import measure
from deltahub.registry.registry import Registry

PART_BYTES: Final = 1 << 20
# A discriminator in memory; larger ones wait in a scratch file.
_MEMORY_BYTES: Final = 8 << 20
_AGAIN: Final = "make the kit again (deltahub adapter kit)"


@dataclass(frozen=True)
class NewKit:
    """What is pushed. kit: kit.json, which the caller has checked.

    base: `namespace/name@commit`. adapter_sha256: of adapter_model.safetensors.
    """

    kit: Mapping[str, Any]
    base: str
    adapter_sha256: str
    discriminator_sha256: str


@dataclass(frozen=True)
class StoredKit:
    """A kit as workers read it. kit: kit.json, with today's names of the adapter and its base.

    size: of the discriminator; see read_discriminator().
    """

    id: str
    kit: Mapping[str, Any]
    base_revision_id: int | None
    adapter_sha256: str
    discriminator_sha256: str
    size: int


def require_kit_writer(reg: Registry, caller: Caller | None, name: str) -> None:
    """The errors of put_kit() that are known before any bytes come."""
    with reg.db.read() as session:
        _adapter(session, load_repository(session, caller, name, "write"), name)


def put_kit(
    reg: Registry, caller: Caller | None, name: str, new: NewKit, discriminator: Iterable[bytes]
) -> None:
    """Store a kit in place of the one before, after all of its bytes have come.

    RepositoryNotFound, Forbidden; InvalidRequest if it is for another base, or the repository is no
    adapter; Conflict if the adapter has changed since; HashMismatch, LimitExceeded, QuotaExceeded.
    """
    # The file has no name, so that nothing stays behind when the process is killed.
    with tempfile.SpooledTemporaryFile(_MEMORY_BYTES, dir=str(reg.scratch)) as file:
        size = _receive(file, discriminator, new.discriminator_sha256, reg.settings.max_kit_bytes)
        _store(reg, caller, name, new, file, size)


def _receive(file: IO[bytes], discriminator: Iterable[bytes], wanted_sha256: str, most: int) -> int:
    """The size of what came."""
    size, digest = 0, sha256()
    for piece in discriminator:
        cancellation.check()
        size += len(piece)
        if size > most:
            raise LimitExceeded(
                f"the discriminator is larger than {most} bytes: train it with a lower rank, or"
                " have the operator raise DELTAHUB_MAX_KIT_BYTES"
            )
        digest.update(piece)
        file.write(piece)
    if digest.hexdigest() != wanted_sha256:
        raise HashMismatch(
            f"the discriminator's SHA-256 is {digest.hexdigest()[:12]}..., and the kit names"
            f" {wanted_sha256[:12]}...: push the kit again"
        )
    return size


def _store(
    reg: Registry,
    caller: Caller | None,
    name: str,
    new: NewKit,
    file: IO[bytes],
    size: int,
) -> None:
    # Alone, because it takes away the kit before.
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "write")
        revision, weights = _adapter(session, repository, name)
        base = _checked_base(session, caller, revision, new.base)
        if weights != new.adapter_sha256:
            raise Conflict(
                f"the kit was made for other weights than {name} has now: {_AGAIN} with the adapter"
                " as it is on the hub"
            )
        lock_quota(session, reg.settings, repository.namespace_id)
        _delete(session, repository.id)
        measure(session, repository.id)
        check_room(session, reg.settings, repository.namespace_id)
        row = AdapterKit(
            id=secrets.token_hex(16),
            repository_id=repository.id,
            base_revision_id=base.id,
            kit=dict(new.kit),
            adapter_sha256=new.adapter_sha256,
            discriminator_sha256=new.discriminator_sha256,
            size=size,
        )
        session.add(row)
        session.flush()
        file.seek(0)
        for number in range(_n_parts(size)):
            cancellation.check()
            part = {"kit_id": row.id, "number": number, "data": file.read(PART_BYTES)}
            session.execute(insert(AdapterKitPart).values(part))
        measure(session, repository.id)
        audit.append(session, caller, "adapter.kit.put", name, {"bytes": size})


def delete_kit(reg: Registry, caller: Caller | None, name: str) -> None:
    """Delete a repository's kit; EntryNotFound without one, RepositoryNotFound, Forbidden."""
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "write")
        if not _delete(session, repository.id):
            raise EntryNotFound(f"{name} has no kit")
        measure(session, repository.id)
        audit.append(session, caller, "adapter.kit.delete", name)


def has_kit(session: ReadSession, repository_id: int) -> bool:
    """Whether there is a kit, which every reader of the repository may know."""
    return kit_id_of(session, repository_id) is not None


def kit_id_of(session: ReadSession, repository_id: int) -> str | None:
    """The id of a repository's kit, another one for each kit that is put; None without one."""
    query = select(AdapterKit.id).where(AdapterKit.repository_id == repository_id)
    return session.scalar(query)


def stored_kit(session: ReadSession, repository_id: int) -> StoredKit | None:
    """The kit of a repository, for workers alone; None without one.

    NOT checked: whether the job's user may write to the repository, which a use of the kit needs.
    """
    row = kit_row(session, repository_id)
    if row is None:
        return None
    return StoredKit(
        id=row.id,
        kit=kit_with_names(session, row),
        base_revision_id=row.base_revision_id,
        adapter_sha256=row.adapter_sha256,
        discriminator_sha256=row.discriminator_sha256,
        size=row.size,
    )


def read_discriminator(reg: Registry, stored: StoredKit) -> bytes:
    """The safetensors file of the discriminator, for workers alone.

    Conflict if the kit was deleted or replaced meanwhile; DataLost if its bytes have changed.
    """
    found, digest = bytearray(), sha256()
    with reg.db.read() as session:
        if session.get(AdapterKit, stored.id) is None:
            raise Conflict("the kit was deleted or replaced while a job read it: start it again")
        for piece in discriminator_parts(session, stored.id):
            digest.update(piece)
            found += piece
    if digest.hexdigest() != stored.discriminator_sha256:
        raise DataLost(f"the discriminator of the kit is damaged: {_AGAIN}, and push it")
    return bytes(found)


def discriminator_parts(session: ReadSession, kit_id: str) -> Iterator[bytes]:
    """The parts in their order, one after another."""
    numbers = select(AdapterKitPart.number).where(AdapterKitPart.kit_id == kit_id)
    for number in session.scalars(numbers.order_by(AdapterKitPart.number)).all():
        part = select(AdapterKitPart.data).where(
            AdapterKitPart.kit_id == kit_id, AdapterKitPart.number == number
        )
        yield session.scalars(part).one()


def kit_row(session: ReadSession, repository_id: int) -> AdapterKit | None:
    """The kit of a repository, if it has one."""
    return session.scalar(select(AdapterKit).where(AdapterKit.repository_id == repository_id))


def _delete(session: WriteSession, repository_id: int) -> bool:
    """Whether there was a kit. Its parts go with it."""
    gone = delete(AdapterKit).where(AdapterKit.repository_id == repository_id)
    returning = gone.returning(AdapterKit.id).execution_options(synchronize_session=False)
    return session.scalar(returning) is not None


def kit_with_names(session: ReadSession, row: AdapterKit) -> dict[str, Any]:
    """kit.json with today's names: the repositories may have been renamed."""
    base = None if row.base_revision_id is None else session.get(Revision, row.base_revision_id)
    kit = dict(row.kit)
    if base is not None:
        kit["base"] = _title(session, base)
    if kit.get("adapter") is not None:
        _, at, commit = kit["adapter"].partition("@")
        own = session.get_one(Repository, row.repository_id)
        kit["adapter"] = f"{full_name(session, own)}{at}{commit}"
    return kit


def may_read_revision(session: ReadSession, caller: Caller | None, revision: Revision) -> bool:
    repository = session.get_one(Repository, revision.repository_id)
    return allowed(session, caller, "read", repository)


def _title(session: ReadSession, revision: Revision) -> str:
    repository = session.get_one(Repository, revision.repository_id)
    return f"{full_name(session, repository)}@{revision.commit}"


def _adapter(session: ReadSession, repository: Repository, name: str) -> tuple[Revision, str]:
    """(the head of main, SHA-256 of the adapter's weights there). InvalidRequest if it is none."""
    head = session.get(Revision, repository.head_id)
    found = {} if head is None else entries_at(session, head, [CONFIG, WEIGHTS])
    if head is None or CONFIG not in found or WEIGHTS not in found:
        raise InvalidRequest(
            f"{name} is no adapter: its main has no {CONFIG} or no {WEIGHTS}. Push the adapter"
            " first, then its kit"
        )
    return head, found[WEIGHTS].sha256


def _checked_base(
    session: ReadSession, caller: Caller | None, adapter: Revision, base: str
) -> Revision:
    """The adapter's base; InvalidRequest if the kit is for another one.

    Also for a base that the caller may not read, whose name is then not told.
    """
    row_id = adapter.declared_base_revision_id
    found = None if row_id is None else session.get(Revision, row_id)
    if found is None or not may_read_revision(session, caller, found):
        raise InvalidRequest(
            "the adapter's base is not on this hub, or you may not read it: push the base, and the"
            " adapter with its name as base_model, then make the kit"
        )
    title = _title(session, found)
    if title != base:
        raise InvalidRequest(
            f"the kit is for {quoted(base)}, and the adapter's base is {title}: make the kit on"
            " that base"
        )
    return found


def _n_parts(size: int) -> int:
    return -(-size // PART_BYTES)

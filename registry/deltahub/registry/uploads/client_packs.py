"""Accepts frames that a client has encoded, after verifying every byte of them.

A client's frame is not trusted until its tensor has been decoded and hashed. Its bases must be
tensors that the client may read, so that nobody gets a tensor's bytes by naming its content id, and
that all readers of the repository may read, because they could compute the base from the delta.
Frames for a private repository are kept as they are, inside its namespace. For a public repository,
whose frames everybody decodes, the hub encodes the tensors again. A client sends the difference
from what it has, whatever the depth of that. A tensor whose chain of deltas would be too long is
encoded again: as a delta of the tensor at the root of that chain, or without a base where the next
steps then cost less on the average.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from deltahub.registry import cancellation, failpoints
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.models import Landing, Tensor
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.errors import DeltaCycle, InvalidFrame, LimitExceeded
from deltahub.registry.landings.condemned import delete_condemned
from deltahub.registry.packs.holds import hold_for_user
from deltahub.registry.packs.locations import usable_bases
from deltahub.registry.packs.reading.chain import TensorGone
from deltahub.registry.packs.reading.limits import bytes_to_read, reads_too_much, roots_of
from deltahub.registry.packs.reading.views import has_turned
from deltahub.registry.packs.switch import check_live, in_parts, insert_tensors, make_live
from deltahub.registry.packs.tensor_reader import TensorReader
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound
from deltahub.registry.uploads.client_pack_index import (
    UploadedFrame,
    UploadedPack,
    choose_frames,
    other_packs,
)
from deltahub.registry.uploads.discard import drop_unused
from deltahub.registry.uploads.known_tensors import find_readable
from deltahub.registry.uploads.landing import complete_upload
from deltahub.registry.uploads.verify_frames import FrameVerifier

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AcceptedPack:
    """The result for a pack. n_waiting: tensors whose other frames are not uploaded yet."""

    n_tensors: int
    n_waiting: int


@dataclass
class _UploadContents:
    """The tensors of an uploaded pack."""

    repository_id: int
    domain_id: int
    is_private: bool
    known: dict[bytes, int] = field(
        default_factory=dict
    )  # tensors the caller may claim already -> row id
    whole: dict[bytes, list[UploadedFrame]] = field(default_factory=dict)
    n_waiting: int = 0
    # Uploads that are no longer needed once `whole` is stored.
    used: list[Landing] = field(default_factory=list)


@dataclass(frozen=True)
class _Bases:
    """The bases of a pack's frames: content id -> size.

    too_deep: tensors that are encoded again -> the base to encode them against, None for none.
    turned: row ids of deltas that are bases in transposed form.
    """

    sizes: Mapping[bytes, int]
    too_deep: Mapping[bytes, bytes | None]
    turned: Set[int]


def accept_pack(
    reg: Registry, reader: TensorReader, caller: Caller | None, name: str, sha256: str
) -> AcceptedPack:
    """Store the tensors of an uploaded pack for the repository, and hold them for the caller.

    A tensor whose frames are in several packs is stored when the last pack is accepted; until then
    the uploads are kept. InvalidFrame if a frame does not decode to its tensor, or has a base that
    the caller or a reader of the repository may not read; LimitExceeded; UploadNotFound. After an
    error only the upload is kept. One exception: rows of a pack with thousands of tensors are
    inserted in parts, and if a base is deleted or moved between two, the first parts stay.
    """
    caller = require_writer(caller)
    try:
        try:
            return _accept(reg, reader, caller, name, sha256)
        except DeltaCycle as exc:
            # A base became deeper meanwhile, or is a delta of a lost tensor of the pack.
            log.info("the tensors of pack %s are stored without bases: %s", sha256, exc)
            return _accept(reg, reader, caller, name, sha256, has_bases=False)
    except ObjectNotFound:
        # Another request of the client may have accepted the pack and dropped its upload:
        # UploadNotFound then.
        with reg.db.read() as session:
            complete_upload(session, caller, sha256)
        raise


def _accept(
    reg: Registry,
    reader: TensorReader,
    caller: Caller,
    name: str,
    sha256: str,
    *,
    has_bases: bool = True,
) -> AcceptedPack:
    """has_bases: whether tensors may be stored as deltas."""
    contents = _group_frames(reg, caller, name, sha256)
    bases = _check_bases(reg, caller, name, contents)
    if has_turned(reader, bases.turned):
        raise InvalidFrame(
            "a base is transposed, and is made from a transposed one itself: send the tensor"
            " whole, or against another base"
        )
    again = bases.too_deep if has_bases else dict.fromkeys(contents.whole)
    # What the hub encodes has to be read back and decoded; a client's frames were decoded.
    is_decoded = contents.is_private and not again
    with PackSpool(reg, reader, contents.domain_id, is_decoded=is_decoded) as spool:
        taker = FrameVerifier(
            reg,
            reader,
            spool,
            contents.domain_id,
            bases.sizes,
            again,
            is_private=contents.is_private,
        )
        try:
            for tensor, frames in contents.whole.items():
                taker.take(tensor, frames)
        except TensorGone:
            # If a base was deleted after the check, this check raises InvalidFrame.
            _check_bases(reg, caller, name, contents)
            raise
        sealed = spool.seal()
    _publish(reg, caller, name, contents, sealed)
    with reg.db.write_beside() as session:
        used = [landing.id for landing in contents.used]
        dropped = drop_unused(session, used)
        failpoints.reached("accept.publish.before_commit")
    failpoints.reached("accept.publish.after_commit")
    delete_condemned(reg, dropped)
    return AcceptedPack(len(contents.whole) + len(contents.known), contents.n_waiting)


def _publish(
    reg: Registry, caller: Caller, name: str, contents: _UploadContents, sealed: SealedPacks
) -> None:
    """Insert rows for the tensors and hold them, in parts, because a pack may have very many."""
    for number, part in enumerate(in_parts(sealed)):
        if number:
            failpoints.reached("accept.publish.between_parts")
        _publish_part(reg, caller, name, contents, part, check_live if number else make_live)


@retried
def _publish_part(
    reg: Registry,
    caller: Caller,
    name: str,
    contents: _UploadContents,
    part: SealedPacks,
    check: Callable[[WriteSession, SealedPacks], None],
) -> None:
    with reg.db.write_beside() as session:
        load_repository(session, caller, name, "write")
        check(session, part)
        ids = insert_tensors(session, part, reg.settings.max_depth, is_foreign=contents.is_private)
        ttl_s = reg.settings.hold_ttl_s
        hold_for_user(session, ids.values(), caller.user_id, contents.repository_id, ttl_s)


def _group_frames(reg: Registry, caller: Caller, name: str, sha256: str) -> _UploadContents:
    """Group an upload's frames by tensor; hold the tensors that the caller may claim already."""
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        landing = complete_upload(session, caller, sha256)
        others = other_packs(session, caller, landing)
        contents = _UploadContents(repository.id, repository.domain_id, repository.is_private)
    frames = _by_tensor(UploadedPack(reg, landing).frames())
    # In parts, each in a short transaction, because a pack may name very many tensors.
    for part in batches(frames, PART_TENSORS):
        cancellation.check()
        contents.known |= _hold_known(reg, caller, name, part)
    known = contents.known
    groups = {tensor: [group] for tensor, group in frames.items() if tensor not in known}
    _check_expansion(reg, groups)
    partial = {tensor for tensor, found in groups.items() if choose_frames(found) is None}
    contributing = _add_frames_of_other_uploads(reg, others, groups, partial)
    for tensor, found in groups.items():
        ordered = choose_frames(found)
        if ordered is None:
            contents.n_waiting += 1
        else:
            contents.whole[tensor] = ordered
    contents.used = _finished_uploads(reg, caller, name, contents, [landing, *contributing])
    return contents


def _hold_known(
    reg: Registry, caller: Caller, name: str, tensors: Iterable[bytes]
) -> dict[bytes, int]:
    with reg.db.write_beside() as session:
        repository = load_repository(session, caller, name, "write")
        found = find_readable(session, caller, repository, tensors)
        known = {content: tensor.id for content, tensor in found.items()}
        ttl_s = reg.settings.hold_ttl_s
        hold_for_user(session, known.values(), caller.user_id, repository.id, ttl_s)
    return known


def _by_tensor(frames: Iterable[UploadedFrame]) -> dict[bytes, list[UploadedFrame]]:
    grouped: dict[bytes, list[UploadedFrame]] = {}
    for frame in frames:
        grouped.setdefault(frame.tensor, []).append(frame)
    return grouped


def _add_frames_of_other_uploads(
    reg: Registry,
    others: Iterable[Landing],
    groups: dict[bytes, list[list[UploadedFrame]]],
    partial: set[bytes],
) -> list[Landing]:
    """Add frames of partial tensors from the caller's other uploads; returns these uploads."""
    contributing = []
    for landing in others if partial else ():
        cancellation.check()
        pack = UploadedPack(reg, landing)
        wanted = pack.tensors() & partial
        if not wanted:
            continue
        found = _by_tensor(pack.frames())
        for tensor in wanted:
            groups[tensor].append(found[tensor])
        contributing.append(landing)
    return contributing


def _check_expansion(reg: Registry, groups: Mapping[bytes, list[list[UploadedFrame]]]) -> None:
    decoded = sum(group[0].tensor_size for (group,) in groups.values())
    limit = reg.settings.max_decoded_bytes
    if decoded > limit:
        raise LimitExceeded(f"the pack decodes to {decoded} bytes; at most {limit} in one request")


def _finished_uploads(
    reg: Registry, caller: Caller, name: str, contents: _UploadContents, landings: list[Landing]
) -> list[Landing]:
    """The uploads of which the caller can claim every tensor once `whole` is stored."""
    used = []
    for landing in landings:
        cancellation.check()
        tensors = (
            UploadedPack(reg, landing).tensors() - contents.whole.keys() - contents.known.keys()
        )
        with reg.db.read() as session:
            repository = load_repository(session, caller, name, "write")
            tensors -= find_readable(session, caller, repository, tensors).keys()
        if not tensors:
            used.append(landing)
    return used


def _check_bases(reg: Registry, caller: Caller, name: str, contents: _UploadContents) -> _Bases:
    """The bases of all frames. A missing and an unreadable base get the same error."""
    needed = {
        tensor: {base for frame in frames for base in frame.bases}
        for tensor, frames in contents.whole.items()
    }
    wanted = set().union(*needed.values())
    if len(wanted) > reg.settings.max_query_tensors:
        limit = reg.settings.max_query_tensors
        raise LimitExceeded(f"the pack names {len(wanted)} bases; at most {limit} are allowed")
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        bases = find_readable(session, caller, repository, wanted)
        # The caller may read more than the readers of the repository: its private models elsewhere.
        usable = usable_bases(session, repository.domain_id, (base.id for base in bases.values()))
        bases = {content: base for content, base in bases.items() if base.id in usable}
        for tensor, its_bases in needed.items():
            _check_there(tensor, its_bases, bases, name)
        max_depth = reg.settings.max_depth
        too_deep = _find_too_deep(session, contents, needed, bases, max_depth)
        only = {tensor: bases[next(iter(needed[tensor]))] for tensor in too_deep if max_depth}
        only = {tensor: base for tensor, base in only.items() if len(needed[tensor]) == 1}
        roots = _find_roots(session, repository.domain_id, only)
    sizes = {content: base.size for content, base in bases.items()}
    turned = {
        bases[base].id
        for frames in contents.whole.values()
        for frame in frames
        for base in frame.bases
        if frame.is_turned and bases[base].depth > 0
    }
    return _Bases(sizes, {tensor: roots.get(tensor) for tensor in too_deep}, turned)


def _check_there(
    tensor: bytes, needed: Iterable[bytes], bases: Mapping[bytes, Tensor], name: str
) -> None:
    for base in needed:
        if base not in bases:
            raise InvalidFrame(
                f"tensor {tensor.hex()} is coded against {base.hex()}, which is not here for"
                f" you and all readers of {name}; send it whole, or against another base"
            )


def _find_too_deep(
    session: ReadSession,
    contents: _UploadContents,
    needed: Mapping[bytes, Set[bytes]],
    bases: Mapping[bytes, Tensor],
    max_depth: int,
) -> set[bytes]:
    """The tensors whose chain of deltas would be longer than is allowed, or too costly to read."""
    found: set[bytes] = set()
    deltas = [tensor for tensor, its_bases in needed.items() if its_bases]
    groups = [[bases[base].id for base in needed[tensor]] for tensor in deltas]
    for tensor, base_bytes in zip(deltas, bytes_to_read(session, groups), strict=True):
        depth = 1 + max(bases[base].depth for base in needed[tensor])
        size = contents.whole[tensor][0].tensor_size
        if depth > max_depth or reads_too_much(depth, base_bytes, size):
            found.add(tensor)
    return found


def _find_roots(
    session: ReadSession, domain_id: int, bases: Mapping[bytes, Tensor]
) -> dict[bytes, bytes]:
    """Tensor -> the tensor at the root of its base's chain, where it may take the base's place.

    It takes the same elements of it. Where these do not fit, the delta is large and not used.
    """
    roots = roots_of(session, (base.id for base in bases.values()))
    usable = usable_bases(session, domain_id, roots.values())
    found: dict[bytes, bytes] = {}
    for tensor, base in bases.items():
        root_id = roots.get(base.id)
        if root_id is None or root_id not in usable:
            continue
        root = session.get_one(Tensor, root_id)
        if root.lost is None and root.size == base.size and root.hash != tensor:
            found[tensor] = root.hash
    return found

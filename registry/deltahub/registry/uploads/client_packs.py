"""Taking over frames that a client has encoded, after proving every byte of them.

A client's frame is hostile until its tensor has been decoded and hashed. Its bases are resolved
only among what the client may read, so that naming a tensor's id never gives its bytes away.
Frames for a private repository are kept as they are, inside its namespace; those for a public
one, which everybody will decode, are encoded anew by the hub.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from deltahub.registry import failpoints
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.models import Landing
from deltahub.registry.errors import DeltaCycle, InvalidFrame, LimitExceeded
from deltahub.registry.packs.holds import hold_for_user
from deltahub.registry.packs.switch import check_live, in_parts, insert_tensors, make_live
from deltahub.registry.packs.tensor_reader import TensorGone, TensorReader
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound
from deltahub.registry.uploads.client_pack_index import (
    UploadedFrame,
    UploadedPack,
    choose_frames,
    other_packs,
)
from deltahub.registry.uploads.discard import delete_condemned, drop_unused
from deltahub.registry.uploads.known_tensors import find_readable
from deltahub.registry.uploads.landing import complete_upload
from deltahub.registry.uploads.verify_frames import FrameVerifier


@dataclass(frozen=True)
class AcceptedPack:
    """What came of a pack. n_waiting: tensors whose other frames are still to be uploaded."""

    n_tensors: int
    n_waiting: int


@dataclass
class _UploadContents:
    """What an upload brings."""

    repository_id: int
    domain_id: int
    is_private: bool
    known: dict[bytes, int] = field(default_factory=dict)  # claimable already: row ids
    whole: dict[bytes, list[UploadedFrame]] = field(default_factory=dict)
    n_waiting: int = 0
    # Uploads that nothing more is needed from once `whole` is stored.
    used: list[Landing] = field(default_factory=list)


def accept_pack(
    reg: Registry, reader: TensorReader, caller: Caller | None, name: str, sha256: str
) -> AcceptedPack:
    """Make the tensors of an uploaded pack the repository's to use, and hold them for the caller.

    A tensor whose frames go over several packs is taken when the last of them is accepted; until
    then the uploads are kept. InvalidFrame for anything that does not decode to what it says, or
    is coded against what the caller may not read; DeltaCycle for a chain too deep; LimitExceeded;
    UploadNotFound. Of a refused pack nothing is kept but the upload; only where a base vanishes or
    moves while its thousands of tensors are made known may some of them stay.
    """
    caller = require_writer(caller)
    try:
        return _accept(reg, reader, caller, name, sha256)
    except ObjectNotFound:
        # A client that asks twice: the other request has taken the pack, and dropped the upload.
        with reg.db.read() as session:
            complete_upload(session, caller, sha256)
        raise


def _accept(
    reg: Registry, reader: TensorReader, caller: Caller, name: str, sha256: str
) -> AcceptedPack:
    batch = _sort_frames(reg, caller, name, sha256)
    base_sizes = _check_bases(reg, caller, name, batch)
    with PackSpool(reg, reader, batch.domain_id, is_decoded=batch.is_private) as spool:
        taker = FrameVerifier(
            reg, reader, spool, batch.domain_id, base_sizes, is_private=batch.is_private
        )
        try:
            for tensor, frames in batch.whole.items():
                taker.take(tensor, frames)
        except TensorGone:
            # Deleted since it was looked up? Then it is not here for the caller any more.
            _check_bases(reg, caller, name, batch)
            raise
        sealed = spool.seal()
    _publish(reg, caller, name, batch, sealed)
    with reg.db.write() as session:
        used = [landing.id for landing in batch.used]
        dropped = drop_unused(session, used)
        failpoints.reached("accept.publish.before_commit")
    failpoints.reached("accept.publish.after_commit")
    delete_condemned(reg, dropped)
    return AcceptedPack(len(batch.whole) + len(batch.known), batch.n_waiting)


def _publish(
    reg: Registry, caller: Caller, name: str, batch: _UploadContents, sealed: SealedPacks
) -> None:
    """Make the tensors known and hold them, some at a time: a pack may have very many."""
    for number, part in enumerate(in_parts(sealed)):
        if number:
            failpoints.reached("accept.publish.between_parts")
        with reg.db.write() as session:
            load_repository(session, caller, name, "write")
            check = check_live if number else make_live
            check(session, part)
            ids = insert_tensors(session, part, reg.settings.max_depth, is_foreign=batch.is_private)
            ttl_s = reg.settings.hold_ttl_s
            hold_for_user(session, ids.values(), caller.user_id, batch.repository_id, ttl_s)


def _sort_frames(reg: Registry, caller: Caller, name: str, sha256: str) -> _UploadContents:
    """Sort an upload's frames by tensor; what the caller may claim already is held at once."""
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        landing = complete_upload(session, caller, sha256)
        others = other_packs(session, caller, landing)
        batch = _UploadContents(repository.id, repository.domain_id, repository.is_private)
    frames = _by_tensor(UploadedPack(reg, landing).frames())
    # Some at a time, each in a short transaction: a pack may name very many.
    for part in batches(frames, PART_TENSORS):
        batch.known |= _hold_known(reg, caller, name, part)
    known = batch.known
    groups = {tensor: [group] for tensor, group in frames.items() if tensor not in known}
    _check_expansion(reg, groups)
    partial = {tensor for tensor, found in groups.items() if choose_frames(found) is None}
    contributing = _add_frames_of_other_uploads(reg, others, groups, partial)
    for tensor, found in groups.items():
        ordered = choose_frames(found)
        if ordered is None:
            batch.n_waiting += 1
        else:
            batch.whole[tensor] = ordered
    batch.used = _finished_uploads(reg, caller, name, batch, [landing, *contributing])
    return batch


def _hold_known(
    reg: Registry, caller: Caller, name: str, tensors: Iterable[bytes]
) -> dict[bytes, int]:
    with reg.db.write() as session:
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
    """Add frames of partial tensors that the caller's other uploads have; those uploads."""
    contributing = []
    for landing in others if partial else ():
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
    reg: Registry, caller: Caller, name: str, batch: _UploadContents, landings: list[Landing]
) -> list[Landing]:
    """Of these uploads, those whose every tensor the caller can claim once the batch is stored."""
    used = []
    for landing in landings:
        tensors = UploadedPack(reg, landing).tensors() - batch.whole.keys() - batch.known.keys()
        with reg.db.read() as session:
            repository = load_repository(session, caller, name, "write")
            tensors -= find_readable(session, caller, repository, tensors).keys()
        if not tensors:
            used.append(landing)
    return used


def _check_bases(
    reg: Registry, caller: Caller, name: str, batch: _UploadContents
) -> Mapping[bytes, int]:
    """Content id -> size of every base; the same refusal for absent and for not readable."""
    needed = {
        tensor: {base for frame in frames for base in frame.bases}
        for tensor, frames in batch.whole.items()
    }
    wanted = set().union(*needed.values())
    if len(wanted) > reg.settings.max_query_tensors:
        limit = reg.settings.max_query_tensors
        raise LimitExceeded(f"the pack names {len(wanted)} bases; at most {limit} are allowed")
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        bases = find_readable(session, caller, repository, wanted)
    for tensor, its_bases in needed.items():
        for base in its_bases:
            if base not in bases:
                raise InvalidFrame(
                    f"tensor {tensor.hex()} is coded against {base.hex()}, which is not here for"
                    " you; send it whole, or against another base"
                )
        depth = 1 + max((bases[base].depth for base in its_bases), default=-1)
        if depth > reg.settings.max_depth:
            raise DeltaCycle(
                f"tensor {tensor.hex()} would be {depth} deltas deep; at most"
                f" {reg.settings.max_depth}: send it whole, or against another base"
            )
    return {content: base.size for content, base in bases.items()}

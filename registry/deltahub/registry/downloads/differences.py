"""Frames that are encoded when they are asked for: from the tensors that a reader has.

A reader of a run that has one step and wants a later one gets one difference between the two,
whatever lies between them. The stored frames lead from the step before, or from the anchor of a
chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deltahub.codecs.frames import BasePlan, BaseSegment, FrameRange, TensorSpec, encode_frame
from deltahub.codecs.protocol import Effort
from deltahub.registry import cancellation
from deltahub.registry.db.models import Revision
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.downloads.plan import tensors_of
from deltahub.registry.errors import LimitExceeded, TensorNotFound
from deltahub.registry.packs.locations import FrameLocation, TensorLocation
from deltahub.registry.registry import Registry

# After so many bytes an answer ends with the frame that it is at: encoded ones bound its memory,
# decoded ones its time. The reader asks again for the rest.
_ENCODED_BYTES: Final = 8 << 20
_DECODED_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class Wanted:
    """A tensor, and the one that the reader has. base: None for none."""

    tensor: bytes
    base: bytes | None


def encode_differences(
    reg: Registry,
    reader: FileReader,
    revision: Revision,
    base: Revision | None,
    wanted: Sequence[Wanted],
    first_byte: int,
) -> list[bytes]:
    """Frames of the tensors of a revision, in their order, as many as one answer holds.

    Each frame is a difference from the tensor of the same size of the revision `base`, or without
    a base where there is none, or where that is smaller. first_byte: of the first tensor, where its
    frames begin: the end of the last frame of the answer before.
    TensorNotFound unless each tensor is part of a file of its revision; LimitExceeded; DataLost.
    """
    limit = reg.settings.max_query_tensors
    if len(wanted) > limit:
        raise LimitExceeded(f"a request names at most {limit} tensors, not {len(wanted)}")
    places = _locate(reg, reader, revision, [each.tensor for each in wanted])
    bases: dict[bytes, TensorLocation] = {}
    if base is not None:
        named = [each.base for each in wanted if each.base is not None]
        bases = _locate(reg, reader, base, named)
    frames: list[bytes] = []
    n_encoded = n_decoded = 0
    for number, each in enumerate(wanted):
        tensor = places[each.tensor]
        its_base = None if each.base is None else bases.get(each.base)
        for location in tensor.frames:
            if number == 0 and location.start < first_byte:
                continue
            cancellation.check()
            frames.append(_encode(reg, reader, tensor, location, its_base))
            n_encoded += len(frames[-1])
            n_decoded += location.size
            if n_encoded >= _ENCODED_BYTES or n_decoded >= _DECODED_BYTES:
                return frames
    return frames


def _locate(
    reg: Registry, reader: FileReader, revision: Revision, contents: Sequence[bytes]
) -> dict[bytes, TensorLocation]:
    with reg.db.read() as session:
        ids = tensors_of(session, revision, contents)
    located = reader.locate(ids.values())
    for content in contents:
        if content not in ids or ids[content] not in located:
            raise TensorNotFound(f"no file of {revision.commit} has a tensor {content.hex()}")
    return {content: located[row_id] for content, row_id in ids.items()}


def _encode(
    reg: Registry,
    reader: FileReader,
    tensor: TensorLocation,
    location: FrameLocation,
    base: TensorLocation | None,
) -> bytes:
    if base is None or base.size != tensor.size or base.hash == tensor.hash:
        return _encode_frame(reg, reader, tensor, location, None)
    key = tensor.hash, base.hash, location.start, location.size
    frame = reader.differences.get(key)
    if frame is None:
        frame = _encode_frame(reg, reader, tensor, location, base)
        reader.differences.put(key, frame, len(frame))
    return frame


def _encode_frame(
    reg: Registry,
    reader: FileReader,
    tensor: TensorLocation,
    location: FrameLocation,
    base: TensorLocation | None,
) -> bytes:
    header = reader.frames.open(location).view.header
    spec = TensorSpec(tensor.hash, header.dtype, 1, header.tensor_count)
    part = FrameRange(header.start, header.count, header.rows, header.columns)
    source = bytearray(location.size)
    reader.read_tensor_into(tensor.id, location.start, memoryview(source))
    threads = reg.settings.codec_threads
    if base is None:
        return encode_frame(spec, part, source, threads=threads, effort=Effort.FAST)
    cancellation.check()
    aligned = bytearray(location.size)
    reader.read_tensor_into(base.id, location.start, memoryview(aligned))
    segment = BaseSegment(base.hash, header.dtype, header.start, header.count)
    plan = BasePlan((segment,), is_cast=False)
    return encode_frame(spec, part, source, aligned, plan, "delta", threads, Effort.FAST)

"""DeltaHub: fm_delta frames in a pack with its index, and the recipe that names them."""

import io
from typing import ClassVar

from benchmarks.codec_sizes.contenders.contender import Encoded
from benchmarks.codec_sizes.model_file import ModelFile, pairs
from deltahub.codecs import (
    BasePlan,
    BaseSegment,
    FilePiece,
    FrameView,
    PackEntry,
    PackWriter,
    Recipe,
    TensorRef,
    encode_frame,
    make_recipe,
    read_index,
    split_frames,
    tensor_id,
)


class Ours:
    """The time includes BLAKE3 of the fine-tune's tensors and of the pack, and XXH3 of blocks."""

    name: ClassVar[str] = "deltahub"
    about: ClassVar[str] = "fm_delta frames, one pack, one recipe"
    packages: ClassVar[tuple[str, ...]] = ("numpy", "blake3", "xxhash", "zstandard")

    def encode(self, fine_tune: ModelFile, base: ModelFile) -> Encoded:
        sink = io.BytesIO()
        pack = PackWriter(sink)
        ids: list[bytes] = []
        for piece, base_piece in pairs(fine_tune, base):
            if piece.is_literal:
                continue
            source = fine_tune.bytes_of(piece)
            ids.append(tensor_id(source))
            if base_piece is None:
                _add_standalone(pack, ids[-1], piece, source)
            else:
                base_id = base.id_of(base_piece)
                _add_delta(pack, ids[-1], piece, source, base_id, base.bytes_of(base_piece))

        def read_at(offset: int, length: int) -> bytes:
            return fine_tune.data[offset : offset + length]

        if pack.n_frames:
            pack.finish()
        # The hub's recipe names the file's SHA-256 too; hashing the file is not the codec's work.
        recipe = make_recipe(fine_tune.plan, bytes(32), ids, read_at).to_bytes()
        packed = sink.getvalue() if pack.n_frames else b""
        return Encoded(len(packed) + len(recipe), (packed, recipe))

    def decode(self, encoded: Encoded, base: ModelFile) -> bytearray:
        packed, recipe_bytes = encoded.state
        view = memoryview(packed)
        frames: dict[bytes, list[PackEntry]] = {}
        if packed:
            for entry in read_index(lambda start, n: view[start : start + n], len(packed)):
                frames.setdefault(entry.tensor, []).append(entry)
        recipe = Recipe.from_bytes(recipe_bytes)
        out = bytearray(recipe.size)
        target = memoryview(out)
        position = 0
        for segment in recipe.segments:
            end = position + segment.size
            if isinstance(segment, TensorRef):
                for entry in frames.get(segment.tensor, ()):
                    frame = view[entry.offset : entry.offset + entry.length]
                    _decode_frame(frame, segment, base, target[position:end])
                if segment.tensor not in frames:
                    target[position:end] = _base_bytes(segment, base)
            else:
                target[position:end] = segment.data
            position = end
        return out


def _add_standalone(pack: PackWriter, tensor: bytes, piece: FilePiece, source: memoryview) -> None:
    spec = piece.spec(tensor)
    item = spec.dtype.itemsize
    for part in split_frames(spec):
        chunk = source[part.start * item : (part.start + part.count) * item]
        pack.add(encode_frame(spec, part, chunk, codec="zstd"))


def _add_delta(
    pack: PackWriter,
    tensor: bytes,
    piece: FilePiece,
    source: memoryview,
    base_id: bytes,
    base: memoryview,
) -> None:
    if base_id == tensor:
        return  # the base's own tensor: nothing to store but its name in the recipe
    spec = piece.spec(tensor)
    item = spec.dtype.itemsize
    for part in split_frames(spec):
        span = slice(part.start * item, (part.start + part.count) * item)
        plan = BasePlan((BaseSegment(base_id, spec.dtype, part.start, part.count),), False)
        pack.add(encode_frame(spec, part, source[span], base[span], plan, "fm_delta"))


def _base_bytes(segment: TensorRef, base: ModelFile) -> memoryview:
    piece = base.tensor(segment.name, segment.dtype, segment.shape)
    if piece is None:
        raise LookupError(f"neither the pack nor the base has tensor {segment.name}")
    return base.bytes_of(piece)


def _decode_frame(frame: memoryview, segment: TensorRef, base: ModelFile, out: memoryview) -> None:
    view = FrameView.parse(frame)
    header = view.header
    start = header.start_byte
    end = start + header.size_bytes
    aligned = None if header.base is None else _base_bytes(segment, base)[start:end]
    body = frame[header.prefix_length :]
    view.decode_into(0, header.n_blocks, body, aligned, out[start:end])

"""Small whole frames of fm_delta and neuzip_lossless, with every part of the formats."""

from dataclasses import dataclass, replace
from itertools import cycle

from deltahub.codecs import BY_ID, BlockMode, DType, EncodedBody, FrameHeader, Geometry, tensor_id
from deltahub.codecs.blocks import block_checksum
from deltahub.codecs.frames.header import CHECKSUM, FIXED, SEGMENT, TABLE_ROW
from deltahub.codecs.protocol import Effort, StoredBlocks
from deltahub.codecs.reference import fm_delta
from deltahub.codecs.reference.fm_delta import Model, Words
from deltahub.codecs.reference.fm_delta_model import ALPHABET
from deltahub.codecs.reference.fm_delta_prelude import column_sequences
from support.codecs.deltas import encode, encode_alone, fine_tune, one_row
from support.codecs.frames import plan_on, seal
from support.codecs.reference_models import Tensor, make_tensor, tables_for


@dataclass(frozen=True)
class CodedFrame:
    """A frame of one tensor, with its decoded bytes, its base and its encoded body."""

    codec: str
    geometry: Geometry
    source: bytes
    base: bytes | None
    body: EncodedBody

    @property
    def dtype(self) -> DType:
        return self.geometry.dtype

    @property
    def header(self) -> FrameHeader:
        geometry, body = self.geometry, self.body
        newest = BY_ID[self.codec].version
        plan = None if self.base is None else plan_on(self.base, self.dtype)
        n_segments = 0 if plan is None else len(plan.segments)
        return FrameHeader(
            codec=self.codec,
            codec_version=newest if body.version is None else body.version,
            dtype=self.dtype,
            rows=geometry.rows,
            columns=geometry.columns,
            start=0,
            count=geometry.count,
            tensor_count=geometry.count,
            tensor=tensor_id(self.source),
            rows_per_block=geometry.rows_per_block,
            parts_per_row=geometry.parts_per_row,
            n_blocks=geometry.n_blocks,
            base=plan,
            effort=body.effort,
            header_length=FIXED.size + n_segments * SEGMENT.size + CHECKSUM.size,
            prelude_length=len(body.prelude),
            body_length=body.blocks.size_bytes,
        )

    @property
    def frame(self) -> bytes:
        header, body = self.header, self.body
        blocks = zip(body.blocks, body.checksums, strict=True)
        table = b"".join(TABLE_ROW.pack(len(data), mode, check) for (mode, data), check in blocks)
        stored = b"".join(data for _, data in body.blocks)
        return header.to_bytes() + seal(body.prelude + table) + stored

    @property
    def model(self) -> Model:
        words, geometry, body = Words.of(self.dtype), self.geometry, self.body
        shape = geometry.rows, geometry.columns
        return fm_delta.parse_prelude(words, *shape, body.prelude, self.version)

    @property
    def version(self) -> int:
        """The codec version of an fm_delta frame."""
        assert self.body.version is not None
        return self.body.version

    def stream(self, index: int = 0) -> bytes:
        """A block's stream, without its guard."""
        mode, stored = [*self.body.blocks][index]
        assert mode == BlockMode.CODED
        return stored[4:]


def delta_frame(
    geometry: Geometry, source: bytes, base: bytes, effort: Effort = Effort.DEFAULT
) -> CodedFrame:
    """The frame that the encoder makes."""
    body = encode(geometry, source, base, effort=effort)
    return CodedFrame("fm_delta", geometry, source, base, body)


def float_frame(dtype: DType, count: int, n_blocks: int = 1) -> CodedFrame:
    geometry, (_, words) = one_row(dtype, count, n_blocks), fine_tune(dtype, count)
    return CodedFrame("neuzip_lossless", geometry, words, None, encode_alone(geometry, words))


def made_frame(tensor: Tensor) -> CodedFrame:
    """The frame that the reference makes, which accepts any model."""
    blocks: list[tuple[BlockMode, bytes]] = []
    checksums = []
    for index, (shape, sides) in enumerate(zip(tensor.shapes, tensor.sides, strict=True)):
        source, base = tensor.block(index)
        coded = fm_delta.encode_block(tensor.model, source, base, shape, sides)
        is_coded = len(coded) < len(source)
        blocks.append((BlockMode.CODED, coded) if is_coded else (BlockMode.RAW, source))
        checksums.append(block_checksum(source, index))
    prelude, version = fm_delta.write_prelude(tensor.model), tensor.model.version
    body = EncodedBody(prelude, StoredBlocks(blocks), checksums, 3, version)
    return CodedFrame("fm_delta", tensor.geometry, tensor.source, tensor.base, body)


def all_parts(geometry: Geometry, stride: int = 0) -> Tensor:
    """A tensor with row and column scales, weight-decay rows, and a product if the dtype may."""
    words = Words.of(geometry.dtype)
    has_product = geometry.dtype in (DType.BF16, DType.F16, DType.F32)
    tensor = make_tensor(
        geometry,
        rows=True,
        columns=True,
        staircase_bits=min(words.mantissa_bits, 4),
        rank=3 if has_product else 0,
        stride=stride,
    )
    return near_its_predictions(with_strides(tensor, is_rounded=True))


def near_its_predictions(tensor: Tensor) -> Tensor:
    """The tensor with words that its model predicts well, so that coding pays."""
    model, steps = tensor.model, cycle((0, 0, 1, 0, -1, 0, 3, 0))
    source = b""
    for index, (shape, sides) in enumerate(zip(tensor.shapes, tensor.sides, strict=True)):
        base = model.words.read(tensor.block(index)[1])
        expected = fm_delta.expectations(model, base, shape, sides)
        stride = model.zero_bits
        moved = [model.words.apply(word, next(steps) << stride) for word, _ in expected]
        block = [word >> stride << stride for word in moved]
        source += model.words.write(block)
    return with_tables(replace(tensor, source=source))


def with_strides(tensor: Tensor, is_rounded: bool) -> Tensor:
    """The tensor with factors that share trailing zero bits, if it has a product."""
    low_rank = tensor.model.low_rank
    if low_rank is None:
        return tensor
    strides = [(3 * k % 7, (5 * k + 1) % 9) for k in range(len(low_rank.right))]
    right = tuple(
        tuple(number >> stride << stride for number in row)
        for (_, stride), row in zip(strides, low_rank.right, strict=True)
    )
    low_rank = replace(
        low_rank,
        right=right,
        left_zero_bits=tuple(left for left, _ in strides),
        right_zero_bits=tuple(right for _, right in strides),
        is_rounded=is_rounded,
    )
    sides = []
    for block in tensor.sides:
        pairs = zip(strides, block.left, strict=True)
        left = tuple(tuple(n >> stride << stride for n in row) for (stride, _), row in pairs)
        sides.append(replace(block, left=left))
    model = replace(tensor.model, low_rank=low_rank)
    return with_tables(replace(tensor, model=model, sides=tuple(sides)))


def with_tables(tensor: Tensor) -> Tensor:
    """The tensor with tables that fit its values."""
    model = tensor.model
    sequences = column_sequences(model)
    for index, (shape, sides) in enumerate(zip(tensor.shapes, tensor.sides, strict=True)):
        sequences += fm_delta.block_sequences(model, *tensor.block(index), shape, sides)
    tables = tables_for(ALPHABET, sequences, len(model.tables), model.table_log)
    return replace(tensor, model=replace(model, tables=tables))

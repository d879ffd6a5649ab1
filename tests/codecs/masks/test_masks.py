"""The codec masks: a merged task from base, unified model and bits, the same on every machine."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import (
    CorruptFrame,
    DType,
    FrameView,
    InvalidInput,
    WrongBase,
    assemble,
    decode_frame,
    encode_frame,
    split_frames,
    tensor_id,
    tensor_spec,
)
from deltahub.codecs._native import decode_mask, merge_task, pack_mask
from deltahub.codecs.blocks import guard
from deltahub.codecs.frames.view import open_frame
from deltahub.codecs.masks.codec import ALL_ONES, COMPRESSED, PACKED, SCALE, Masks
from deltahub.codecs.reference import masks as reference
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.merging import elect
from support.codecs.frames import forge_header, forge_table, plan_on, seal, table_of
from support.codecs.kernels import every_kernel, running
from support.codecs.masked import (
    FLOATS,
    Merge,
    encode_masked,
    masked_frame,
    merge_of,
    random_merge,
    values_of,
)
from support.codecs.processor_modes import MODES, in_mode

every_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
scales = st.floats(0, 4, allow_subnormal=True) | st.just(1.0)
COUNT = 700  # not a multiple of any width of vectors


def finite_words(dtype: DType) -> st.SearchStrategy[bytes]:
    """One element, subnormal, huge or negative, but finite."""
    whole = st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize)
    return whole.filter(lambda word: bool(np.isfinite(values_of(dtype, word)[0])))


def form_of(frame: bytes) -> int:
    """The form of the first block, which must be coded."""
    view, body = open_frame(frame)
    assert view.blocks.rows(0, 1)[0][0] == 2
    return body[4]


@every_kernel
@every_dtype
@given(data=st.data())
def test_every_set_of_kernels_agrees_with_the_reference(
    kernels: str, dtype: DType, data: st.DataObject
) -> None:
    words = finite_words(dtype)
    n = data.draw(st.integers(1, 40))
    base = b"".join(data.draw(st.lists(words, min_size=n, max_size=n)))
    tasks = [
        b"".join(
            data.draw(words | st.just(base[at : at + dtype.itemsize]))
            for at in range(0, len(base), dtype.itemsize)
        )
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    scale = data.draw(scales)
    kind = WORD_KINDS[dtype]
    with running(kernels):
        merge = merge_of(dtype, base, tasks)
        made = bytearray(len(base))
        merge_task(kind, base, merge.unified, tasks[0], scale, made, 1)
        bits, n_active = pack_mask(kind, base, merge.unified, made, scale)
        back = bytearray(len(base))
        decode_mask(kind, base, merge.unified, bits, scale, back)
    assert back == made
    assert len(bits) == (n_active + 7) // 8
    assert reference.decode(dtype, base, merge.unified, bits, scale) == made
    values = [values_of(dtype, each) for each in (base, *tasks)]
    with np.errstate(over="ignore", invalid="ignore"):
        expected = elect.elect_unified(values[0], values[1:])
    assert np.array_equal(values_of(dtype, merge.unified), expected)


@every_kernel
@every_dtype
@pytest.mark.parametrize("mode", list(MODES))
def test_sums_and_words_do_not_depend_on_threads_kernels_or_processor_modes(
    kernels: str, dtype: DType, mode: str
) -> None:
    merge = random_merge(dtype, 200_001)
    expected = merge.task(1, 0.8)
    with running(kernels), in_mode(mode):
        again = merge_of(dtype, merge.base, merge.tasks, threads=3)
        made = again.task(1, 0.8)
    assert (again.unified, again.sums, made) == (merge.unified, merge.sums, expected)
    for sums, task in zip(merge.sums, merge.tasks, strict=True):
        plain = elect.sums_of(
            *(values_of(dtype, each) for each in (merge.base, merge.unified, task))
        )
        assert sums == pytest.approx(plain.to_list(), rel=1e-12)


@every_dtype
@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 1.7])
def test_a_frame_decodes_to_the_merged_task(dtype: DType, scale: float) -> None:
    merge = random_merge(dtype, COUNT)
    words = merge.task(0, scale)
    frame = encode_masked(merge, words, scale)
    assert decode_frame(frame, merge.base + merge.unified) == words
    assert FrameView.parse(frame).header.codec == "masks"
    if scale:
        assert form_of(frame) in (PACKED, COMPRESSED)


def test_any_range_of_blocks_decodes_alone_by_any_number_of_threads() -> None:
    merge = random_merge(DType.BF16, 3 * (1 << 18) + 5)
    words = merge.task(2, 0.9)
    frames = {encode_masked(merge, words, 0.9, threads) for threads in (1, 4)}
    (frame,) = frames
    view, body = open_frame(frame)
    assert view.header.n_blocks == 4
    store = dict(zip(view.header.base.base_ids(), (merge.base, merge.unified), strict=True))

    def read(tensor: bytes, first: int, out: memoryview) -> None:
        out[:] = store[tensor][first : first + len(out)]

    for i, j in ((0, 1), (1, 3), (3, 4), (0, 4)):
        low, high = view.span(i, j)
        inputs = bytearray(view.header.base_bytes(high - low))
        plan = view.header.base
        assert plan is not None
        assemble(plan, DType.BF16, low // 2, (high - low) // 2, read, memoryview(inputs))
        begin, end = view.stored_span(i, j)
        prefix = view.header.prefix_length
        out = bytearray(high - low)
        view.decode_into(i, j, body[begin - prefix : end - prefix], inputs, memoryview(out), 2)
        assert out == words[low:high]


def test_masks_take_the_fewest_bytes() -> None:
    alone = merge_of(DType.BF16, *_pair())
    assert alone.unified == alone.tasks[0]
    assert alone.task(0, 1.0) == alone.tasks[0]
    frame = encode_masked(alone, alone.tasks[0], 1.0)
    assert form_of(frame) == ALL_ONES
    unchanged = encode_masked(alone, alone.base, 1.0)
    assert table_of(unchanged)[0][:2] == (0, 0)
    # One task in two changes a whole half: its bits compress.
    half = COUNT // 2 * 2
    two = merge_of(DType.BF16, alone.base, [
        alone.base[:half] + alone.unified[half:], alone.unified[:half] + alone.base[half:]
    ])  # fmt: skip
    assert form_of(encode_masked(two, two.task(0, 1.0), 1.0)) == COMPRESSED
    assert form_of(masked_frame(DType.BF16, COUNT)[0]) == PACKED


def _pair() -> tuple[bytes, list[bytes]]:
    merge = random_merge(DType.BF16, COUNT, n_tasks=1)
    return merge.base, merge.tasks


def test_only_what_a_merge_makes_is_coded() -> None:
    merge = random_merge(DType.F32, COUNT)
    with pytest.raises(InvalidInput, match="no mask of this scale"):
        encode_masked(merge, merge.tasks[0], 0.5)
    spec = tensor_spec(tensor_id(merge.base), "F32", [COUNT])
    (part,) = split_frames(spec)
    one = plan_on(merge.base, DType.F32)
    with pytest.raises(InvalidInput, match="takes 2 inputs"):
        encode_frame(spec, part, merge.base, merge.base, one, "masks")
    for scale in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="scale"):
            Masks(scale)
    integers = Merge(DType.I16, merge.base, [], merge.unified, [])
    with pytest.raises(InvalidInput, match="I16"):
        encode_masked(integers, merge.base, 1.0)


def test_one_input_is_not_enough() -> None:
    frame, inputs = masked_frame(DType.BF16, COUNT)
    with pytest.raises(WrongBase):
        decode_frame(frame, inputs[: len(inputs) // 2])
    with pytest.raises(WrongBase):
        decode_frame(frame)


def forge_prelude(frame: bytes, prelude: bytes) -> bytes:
    header = FrameView.parse(frame).header
    at, length = header.header_length, header.prelude_length
    table = frame[at + length : header.prefix_length - 8]
    head = forge_header(frame[:at], prelude_length=len(prelude))
    return head + seal(prelude + table) + frame[header.prefix_length :]


FORGED_SCALES = {
    "negative": SCALE.pack(-1.0),
    "negative zero": SCALE.pack(-0.0),
    "infinite": SCALE.pack(float("inf")),
    "not a number": struct.pack("<Q", 0x7FF8 << 48),
    "short": bytes(7),
    "long": bytes(9),
    "missing": b"",
}


@pytest.mark.parametrize("prelude", list(FORGED_SCALES))
def test_a_forged_scale_is_refused(prelude: str) -> None:
    frame, inputs = masked_frame(DType.BF16, COUNT)
    with pytest.raises(CorruptFrame):
        decode_frame(forge_prelude(frame, FORGED_SCALES[prelude]), inputs)


def forged_bodies() -> dict[str, bytes]:
    frame, _ = masked_frame(DType.BF16, COUNT)
    _, body = open_frame(frame)
    form, bits = body[4], bytes(body[5:])
    assert form == PACKED
    return {
        "no form": b"",
        "an unknown form": b"\0" + bits,
        "bytes after ones": bytes([ALL_ONES]) + bits,
        "one byte too few": bytes([PACKED]) + bits[:-1],
        "one byte too many": bytes([PACKED]) + bits + b"\0",
        "a bit after the last": bytes([PACKED]) + bits[:-1] + bytes([bits[-1] | 0x80]),
        "no bits": bytes([PACKED]),
        "no zstd frame": bytes([COMPRESSED]) + bits,
        "a zstd frame of a terabyte": bytes([COMPRESSED])
        + b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little"),
    }  # fmt: skip


@pytest.mark.parametrize("fault", list(forged_bodies()))
def test_a_forged_mask_is_refused(fault: str) -> None:
    merge = random_merge(DType.BF16, COUNT - COUNT % 8 + 3)
    frame = encode_masked(merge, merge.task(0, 1.0), 1.0)
    ((_, mode, checksum),) = table_of(frame)
    body = forged_bodies()[fault]
    stored = guard(body) + body
    forged = forge_table(frame, [(len(stored), mode, checksum)], stored)
    with pytest.raises(CorruptFrame):
        decode_frame(forged, merge.base + merge.unified)

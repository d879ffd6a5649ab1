"""fm_delta version 0: what stores hold of it is read, by NumPy and by the readable one alike."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import (
    BY_ID,
    BlockMode,
    CodecError,
    CorruptFrame,
    DType,
    EncodedBody,
    Geometry,
    UnsupportedVersion,
    decode_frame,
)
from deltahub.codecs.blocks import block_checksum
from deltahub.codecs.frame import open_frame
from deltahub.codecs.protocol import StoredBlocks
from deltahub.codecs.registry import codec_for
from support import fm_delta_trial
from support.coded_frames import CodedFrame
from support.deltas import fine_tune, modes, one_row, special_words
from support.fm_delta_trial import Words, decoded, frame_of, trial
from support.spec_pages import hex_block

every_dtype = pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.name)

SMALL = {
    "BF16": trial(one_row(DType.BF16, 90), *fine_tune(DType.BF16, 90), (115, 120), 0, 7),
    "F64": trial(one_row(DType.F64, 40), *fine_tune(DType.F64, 40, step=1e-9), (), 20, 8),
    "F32": trial(one_row(DType.F32, 50, 2), *fine_tune(DType.F32, 50, step=1e-6), (), 3, 8),
    "I16": trial(one_row(DType.I16, 80), *fine_tune(DType.I16, 80), (), 4, 7),
    "F8_E5M2": trial(one_row(DType.F8_E5M2, 200), *fine_tune(DType.F8_E5M2, 200, step=1e-3)),
}
every_small = pytest.mark.parametrize("name", SMALL)


def mixed(dtype: DType, n: int) -> tuple[bytes, bytes]:
    """A fine-tune whose second quarter did not change, and whose third is noise."""
    source, base = (bytearray(data) for data in fine_tune(dtype, 4 * n, step=1e-5))
    low, middle, high = (i * n * dtype.itemsize for i in (1, 2, 3))
    source[low:middle] = base[low:middle]
    source[middle:high] = random.Random(0).randbytes(high - middle)
    return bytes(source), bytes(base)


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(list(DType)),
    shape=st.sampled_from(
        # rows, columns, rows a block, parts of a row
        [
            *[(1, 1, 1, 1), (1, 7, 1, 1), (1, 8, 1, 1), (1, 60, 1, 1), (1, 61, 1, 4)],
            *[(3, 45, 1, 2), (7, 11, 2, 1), (20, 3, 1, 1), (9, 16, 8, 1)],
        ]
    ),
    first_keys=st.lists(st.integers(1, 15), max_size=15),
    shift=st.integers(0, 7),
    log=st.sampled_from(fm_delta_trial.TABLE_LOGS),
    step=st.sampled_from([0.0, 1e-7, 1e-4, 1.0]),
    seed=st.integers(0, 9),
)
def test_frames_of_any_form_decode_to_what_was_encoded(
    dtype: DType,
    shape: tuple[int, int, int, int],
    first_keys: list[int],
    shift: int,
    log: int,
    step: float,
    seed: int,
) -> None:
    geometry = Geometry(dtype, *shape)
    source, base = fine_tune(dtype, geometry.count, seed, step)
    unit = (1 << Words.of(dtype).key_bits) // 16  # contexts all over the exponents
    keys = {key * unit for key in first_keys} - {0}
    case = trial(geometry, source, base, keys, shift, log)
    assert decoded(case) == source
    assert BlockMode.CODED in modes(case.body) or step in (0.0, 1.0) or geometry.count < 200


@every_dtype
def test_words_at_their_limits(dtype: DType) -> None:
    words = special_words(dtype)
    base = np.repeat(words, len(words)).tobytes() * 8
    source = np.tile(words, len(words)).tobytes() * 8
    # Most of the frame is as its base, so that what is not may be coded at length.
    many = base * 7 + source, base * 8
    case = trial(one_row(dtype, len(many[0]) // dtype.itemsize), *many)
    assert modes(case.body) == [BlockMode.CODED]
    assert decode_frame(frame_of(case), many[1]) == many[0]


@pytest.mark.parametrize(
    ("dtype", "shift"), [(DType.BF16, 0), (DType.F32, 4), (DType.F64, 30), (DType.I8, 0)]
)
def test_any_run_of_blocks_of_all_modes(dtype: DType, shift: int) -> None:
    source, base = mixed(dtype, 300)
    case = trial(Geometry(dtype, 4, 300, 1, 4), source, base, (), shift, 9)
    assert set(modes(case.body)) == set(BlockMode)
    view, body = open_frame(frame_of(case))
    n = view.header.n_blocks
    for first in range(n):
        for end in range(first + 1, n + 1):
            low, high = view.block_span(first)[0], view.block_span(end - 1)[1]
            begin, stop = (at - view.header.prefix_length for at in view.stored_span(first, end))
            out = bytearray(high - low)
            view.decode_into(first, end, body[begin:stop], base[low:high], memoryview(out))
            assert out == source[low:high]


@pytest.mark.parametrize(("blocks", "words"), [(1, 50), (2, 1), (3, 3000), (1024, 500)])
def test_more_blocks_and_words_than_are_decoded_together(
    monkeypatch: pytest.MonkeyPatch, blocks: int, words: int
) -> None:
    monkeypatch.setattr("deltahub.codecs.fm_delta_trial._BLOCKS", blocks)
    monkeypatch.setattr("deltahub.codecs.fm_delta_trial._CHUNK_WORDS", words)
    for shape in ((9, 130, 2, 1), (2, 500, 1, 3)):
        geometry = Geometry(DType.BF16, *shape)
        case = trial(geometry, *fine_tune(DType.BF16, geometry.count, step=1e-5))
        assert decode_frame(frame_of(case), case.base) == case.source


def test_a_frame_without_coded_blocks_has_no_tables() -> None:
    source, base = fine_tune(DType.BF16, 300)
    case = trial(one_row(DType.BF16, 300), base, base)
    frame = frame_of(replace(case, body=replace(case.body, prelude=b"")))
    assert decode_frame(frame, base) == base
    with pytest.raises(CorruptFrame, match="block 0 decodes to other bytes"):
        decode_frame(frame, source)


def test_version_0_of_this_codec_alone_is_read_and_none_is_written() -> None:
    assert codec_for(2, 0) is BY_ID["fm_delta"]
    for number in (0, 1, 3):
        with pytest.raises(UnsupportedVersion):
            codec_for(number, 0)
    assert min(codec.oldest_written for codec in BY_ID.values()) == 1


def test_the_example_on_the_page_is_what_it_says() -> None:
    prelude, base, stream, said = (
        hex_block("fm_delta_v0", info) for info in ("prelude", "base", "stream", "decoded")
    )
    words = Words.of(DType.BF16)
    model = fm_delta_trial.parse_prelude(prelude, words)
    assert [(context.first_key, context.shift) for context in model.contexts] == [(0, 2), (125, 0)]
    assert fm_delta_trial.decode_block(words, model, stream, base) == said
    assert fm_delta_trial.encode_block(words, model, said, base) == stream
    case = trial(one_row(DType.BF16, 12), said, base)
    assert decoded(with_bytes(case, prelude, stream, said)) == said


# --- damage


@every_small
def test_every_truncation_of_a_frame_is_refused(name: str) -> None:
    case = SMALL[name]
    frame = frame_of(case)
    assert modes(case.body)[0] == BlockMode.CODED
    for changed in [*(frame[:length] for length in range(len(frame))), frame + b"\0"]:
        with pytest.raises(CodecError):
            decode_frame(changed, case.base)


@every_small
def test_every_flipped_bit_of_a_frame_is_refused(name: str) -> None:
    case = SMALL[name]
    frame = frame_of(case)
    for bit in range(8 * len(frame)):
        with pytest.raises(CodecError):
            decode_frame(flipped(frame, bit), case.base)


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def first_stream(case: CodedFrame) -> bytes:
    return next(iter(case.body.blocks))[1]


def with_bytes(case: CodedFrame, prelude: bytes, stream: bytes, first: bytes) -> CodedFrame:
    """The first block on its own, with another prelude and stream, and this one's checksum."""
    assert case.base is not None
    count = len(first) // case.dtype.itemsize
    blocks = StoredBlocks([(BlockMode.CODED, stream)])
    body = EncodedBody(prelude, blocks, [block_checksum(first, 0)])
    return CodedFrame("fm_delta", one_row(case.dtype, count), first, case.base[: len(first)], body)


def assert_both_agree(case: CodedFrame, prelude: bytes, stream: bytes) -> bool:
    """Whether NumPy and the readable one take these bytes for the first block."""
    assert case.base is not None
    words, n = Words.of(case.dtype), case.geometry.block_bytes(0)[1]
    try:
        model = fm_delta_trial.parse_prelude(prelude, words)
        made = fm_delta_trial.decode_block(words, model, stream, case.base[:n])
    except CorruptFrame:
        with pytest.raises(CorruptFrame, match=r"prelude|block 0 is none that an encoder writes"):
            decoded(with_bytes(case, prelude, stream, case.source[:n]))
        return False
    assert decoded(with_bytes(case, prelude, stream, made)) == made
    return True


@every_small
def test_a_changed_stream_is_refused_or_another_by_both_alike(name: str) -> None:
    case = SMALL[name]
    prelude, stream = case.body.prelude, first_stream(case)
    assert assert_both_agree(case, prelude, stream)
    changed = [flipped(stream, bit) for bit in range(8 * len(stream))]
    changed += [stream[:n] for n in range(1, len(stream))]
    changed = random.Random(0).sample(changed, 120)
    changed += [b"\0", b"\1", stream + b"\0", stream + b"\1"]
    n_bytes = case.geometry.block_bytes(0)[1]
    agreed = [assert_both_agree(case, prelude, data) for data in changed if len(data) < n_bytes]
    assert agreed.count(False) > 20


@every_small
def test_a_changed_prelude_is_refused_or_another_by_both_alike(name: str) -> None:
    case = SMALL[name]
    prelude, stream = case.body.prelude, first_stream(case)
    changed = [flipped(prelude, bit) for bit in range(8 * len(prelude))]
    changed = random.Random(0).sample(changed, min(150, len(changed)))
    changed += [prelude[:n] for n in range(1, len(prelude))]
    changed += [prelude + b"\0", prelude + b"\1", prelude + bytes(1 << 16)]
    agreed = [assert_both_agree(case, data, stream) for data in changed]
    assert agreed.count(False) > len(prelude)


@settings(max_examples=100)
@given(name=st.sampled_from(list(SMALL)), junk=st.binary(min_size=1, max_size=79))
def test_junk_is_refused_or_another_by_both_alike(name: str, junk: bytes) -> None:
    case = SMALL[name]
    assert_both_agree(case, junk, first_stream(case))
    assert_both_agree(case, case.body.prelude, junk)


def test_the_first_damaged_block_is_named() -> None:
    geometry = Geometry(DType.BF16, 4, 300, 1, 2)
    case = trial(geometry, *fine_tune(DType.BF16, 1200, step=1e-5))
    frame = frame_of(case)
    assert modes(case.body) == [BlockMode.CODED] * 8
    view, _ = open_frame(frame)
    for block in (2, 5):
        frame = flipped(frame, 8 * view.stored_span(block, block + 1)[0] + 20)
    with pytest.raises(CorruptFrame, match="block 2 "):
        decode_frame(frame, case.base)

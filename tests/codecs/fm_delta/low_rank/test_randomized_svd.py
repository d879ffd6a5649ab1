"""BF16 at default effort: the quick search finds products, the same ones on every machine."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import DType, FrameView, TensorSpec, decode_frame, encode_frame, tensor_id
from deltahub.codecs._native import encode_delta_frame, find_low_rank
from deltahub.codecs.fm_delta.low_rank.prediction import LowRank, Words, predict
from deltahub.codecs.frames.encode import split_frames
from deltahub.codecs.protocol import Effort
from deltahub.codecs.words import WORD_KINDS
from support.codecs.frames import plan_on
from support.codecs.kernels import NAMES, every_kernel, running
from support.models.tiny_models import base, finetune

BF16 = WORD_KINDS[DType.BF16]
DEFAULT = int(Effort.DEFAULT)
MATRICES = ("up.weight", "head.weight", "embedding.weight")


def words_of(tensor: torch.Tensor) -> Words:
    return tensor.to(torch.bfloat16).contiguous().view(torch.uint16).numpy()


def pair_of(name: str) -> tuple[Words, Words]:
    """(fine-tuned, base) words of a trained layer."""
    return words_of(finetune(1e-4)[name]), words_of(base()[name])


def merged(
    rows: int, columns: int, rank: int, size: float, rounded: torch.dtype = torch.float32
) -> tuple[Words, Words]:
    """Repeated rows of a trained layer, before and after a product of low rank is added.

    rounded: the dtype of the product, before it is added.
    """
    layer = base()["up.weight"]
    random = torch.Generator().manual_seed(3)
    weights = layer.repeat(-(-rows // layer.shape[0]), -(-columns // layer.shape[1]))
    before = weights[:rows, :columns].bfloat16()
    left = torch.randn(rows, rank, generator=random) * size
    product = (left @ torch.randn(rank, columns, generator=random)).to(rounded).float()
    return words_of(before.float() + product), words_of(before)


def frame_of(source: Words, near: Words, codec: str = "auto", threads: int = 1) -> bytes:
    spec = TensorSpec(tensor_id(source.tobytes()), DType.BF16, *source.shape)
    (part,) = split_frames(spec)
    plan = plan_on(near.tobytes(), DType.BF16)
    return encode_frame(
        spec, part, source.tobytes(), near.tobytes(), plan, codec, threads, Effort.DEFAULT
    )


def decoded(frame: bytes, near: Words) -> bytes:
    has_base = FrameView.parse(frame).header.base is not None
    return bytes(decode_frame(frame, near.tobytes() if has_base else None))


@pytest.mark.parametrize("name", MATRICES)
def test_every_kernel_finds_the_same(name: str) -> None:
    pairs = [pair_of(name), tuple(words[:-1, :-1].copy() for words in pair_of(name))]
    for source, near in pairs:
        found = []
        for kernels in NAMES:
            with running(kernels):
                found.append(find_low_rank(BF16, source, near, DEFAULT))
        assert all(each == found[0] for each in found)


@every_kernel
@pytest.mark.parametrize("shape", [(64, 64), (65, 71), (300, 129), (129, 300), (700, 448)], ids=str)
def test_a_product_is_found_in_matrices_of_any_shape(shape: tuple[int, int], kernels: str) -> None:
    source, near = merged(*shape, rank=3, size=2e-3)
    with running(kernels):
        left, right, floor, *_ = find_low_rank(BF16, source, near, DEFAULT)
        frame = frame_of(source, near)
    low_rank = LowRank(
        np.frombuffer(left, np.int16).reshape(shape[0], -1),
        np.frombuffer(right, np.int16).reshape(-1, shape[1]),
        floor,
    )
    assert 3 <= low_rank.rank <= 6
    assert (predict(DType.BF16, near, low_rank) == source).mean() > 0.6
    assert decoded(frame, near) == source.tobytes()
    with running(NAMES[0]):
        assert frame_of(source, near) == frame


def test_a_frame_is_the_one_that_is_put_together_from_parts() -> None:
    for name in MATRICES:
        source, near = pair_of(name)
        frame = frame_of(source, near)
        assert FrameView.parse(frame).header.effort == Effort.DEFAULT
        assert frame == frame_of(source, near, "fm_delta")
        assert frame == frame_of(source, near, threads=3)
        assert decoded(frame, near) == source.tobytes()


@pytest.mark.parametrize(("rank", "size", "most"), [(4, 1e-3, 3), (8, 3e-4, 2.2), (16, 3e-4, 1.7)])
def test_merged_adapters_take_a_few_times_their_factors_at_most(
    rank: int, size: float, most: float
) -> None:
    source, near = merged(700, 448, rank, size)
    assert len(frame_of(source, near)) < most * 2 * rank * sum(source.shape)


@pytest.mark.parametrize(
    ("side", "rank", "size"), [(700, 4, 1e-3), (1500, 2, 1e-3), (2048, 8, 3e-4)], ids=str
)
def test_large_merges_are_refined(side: int, rank: int, size: float) -> None:
    source, near = merged(side, side, rank, size)
    frame = frame_of(source, near)
    assert decoded(frame, near) == source.tobytes()
    assert len(frame) < 2 * 2 * rank * sum(source.shape)


def test_every_kernel_refines_alike() -> None:
    for product in (torch.float32, torch.bfloat16):
        source, near = merged(600, 333, 2, 1e-3, product)
        frames = []
        for kernels in NAMES:
            with running(kernels):
                frames.append(frame_of(source, near))
        assert all(frame == frames[0] for frame in frames)


def test_merges_whose_product_was_rounded_are_found_out() -> None:
    for product in (torch.float32, torch.bfloat16):
        source, near = merged(900, 900, 4, 1e-3, product)
        *_, is_rounded, _ = find_low_rank(BF16, source, near, DEFAULT)
        assert is_rounded == (product is torch.bfloat16)
        frame = frame_of(source, near)
        assert decoded(frame, near) == source.tobytes()
        assert len(frame) < 2.2 * 2 * 4 * sum(source.shape)


def scaled_merge(scales: np.ndarray, by_row: bool) -> tuple[Words, Words]:
    """A merged adapter of rank 4, with rows or columns of these relative sizes."""
    side = len(scales)
    random = np.random.default_rng(5)
    weights = random.standard_normal((side, side)) * 0.02
    left = random.standard_normal((side, 4)) * 1e-3
    right = random.standard_normal((4, side))
    if by_row:
        left *= scales[:, None]
    else:
        right *= scales
    before = torch.from_numpy(weights).bfloat16()
    return words_of(before.float() + torch.from_numpy(left @ right).float()), words_of(before)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_rows_and_columns_of_a_merge_may_differ_in_size(spread: float, by_row: bool) -> None:
    scales = np.exp2(np.random.default_rng(6).standard_normal(640) * spread)
    source, near = scaled_merge(scales, by_row)
    frame = frame_of(source, near)
    assert decoded(frame, near) == source.tobytes()
    assert len(frame) < 2.2 * 2 * 4 * sum(source.shape)


def test_least_squares_refine_what_passes_do_not() -> None:
    scales = np.ones(640)
    scales[::100] = 100
    source, near = scaled_merge(scales, by_row=False)
    frame = frame_of(source, near)
    assert decoded(frame, near) == source.tobytes()
    assert len(frame) < 4 * 2 * 4 * sum(source.shape)


def test_one_difference_beyond_all_numbers_spoils_nothing() -> None:
    source, near = merged(640, 640, 4, 1e-3)
    size = len(frame_of(source, near))
    source[100, 200], near[100, 200] = 0x7F60, 0xFF60
    frame = frame_of(source, near)
    assert decoded(frame, near) == source.tobytes()
    assert len(frame) < 1.1 * size


def test_new_rows_have_no_part_in_it() -> None:
    source, near = pair_of("up.weight")
    more = np.random.default_rng(0).integers(0x3C00, 0x3F80, (40, source.shape[1]), np.uint16)
    left, right, floor, *_ = find_low_rank(BF16, source, near, DEFAULT)
    all_left, all_right, all_floor, *_ = find_low_rank(
        BF16, np.vstack([source, more]), np.vstack([near, np.zeros_like(more)]), DEFAULT
    )
    assert len(left) > 0
    assert (all_right, all_floor) == (right, floor)
    assert all_left == left + bytes(len(all_left) - len(left))
    nothing = np.zeros_like(more)
    assert find_low_rank(BF16, more, nothing, DEFAULT)[0] == b""


@settings(max_examples=40)
@given(
    rows=st.integers(64, 80),
    columns=st.integers(64, 90),
    seed=st.integers(0, 1 << 30),
    odd=st.sampled_from([0, 0.001, 0.2, 1]),
    large=st.booleans(),
)
def test_words_of_any_bits_come_back(
    rows: int, columns: int, seed: int, odd: float, large: bool
) -> None:
    random = np.random.default_rng(seed)
    scale = 1e37 if large else 0.02
    weights = random.standard_normal((rows, columns)) * scale
    step = random.standard_normal((rows, 2)) @ random.standard_normal((2, columns)) * scale / 50
    near, source = (words_of(torch.from_numpy(each)) for each in (weights, weights + step))
    for words in (near, source):
        is_odd = random.random(words.shape) < odd
        words[is_odd] = random.integers(0, 1 << 16, int(is_odd.sum()), np.uint16)
    frames = []
    for kernels in (NAMES[0], NAMES[-1]):
        with running(kernels):
            frames.append(frame_of(source, near))
    assert frames[0] == frames[1]
    assert decoded(frames[0], near) == source.tobytes()


def test_unrelated_and_equal_matrices_have_none() -> None:
    source, near = pair_of("up.weight")
    stranger = words_of(base(1)["up.weight"])
    assert find_low_rank(BF16, stranger, near, DEFAULT)[0] == b""
    assert find_low_rank(BF16, near, near, DEFAULT)[0] == b""
    assert find_low_rank(BF16, source[:63].copy(), near[:63].copy(), DEFAULT)[0] == b""
    for shape in [(5, 0), (64, 0)]:
        assert find_low_rank(BF16, *[np.zeros(shape, np.uint16)] * 2, DEFAULT)[0] == b""


@pytest.mark.parametrize("scale", [1e-12, 1e-7, 1e7], ids=str)
def test_a_product_is_found_in_numbers_of_any_size(scale: float) -> None:
    random = np.random.default_rng(0)
    weights = random.standard_normal((128, 96)) * 0.02
    step = random.standard_normal((128, 2)) @ random.standard_normal((2, 96)) * 3e-3
    source, near = (words_of(torch.from_numpy(each * scale)) for each in (weights + step, weights))
    assert len(find_low_rank(BF16, source, near, DEFAULT)[0]) > 0


def test_arguments_that_do_not_fit_are_refused() -> None:
    source, near = pair_of("up.weight")
    for kind, words, wrong_base, effort in [
        (WORD_KINDS[DType.I16], source, near, 2),
        (BF16, source[:-1], near, 2),
        (BF16, source[::2], near[::2], 2),
        (BF16, source.view(np.uint32), near.view(np.uint32), 2),
        (BF16, source, near, 1),
    ]:
        with pytest.raises(ValueError, match=r"shapes differ|another size|predicted|follow|effort"):
            find_low_rank(kind, words, wrong_base, effort)
    rows, columns = source.shape
    data = source.tobytes(), near.tobytes()
    with pytest.raises(ValueError, match="words and base"):
        encode_delta_frame(
            BF16, data[0], data[1][:-2], rows, columns, rows, 1, bytes(184), 1 << 30, 2, 1
        )
    for kind in (WORD_KINDS[DType.F16], WORD_KINDS[DType.F32]):
        size = rows * columns * (2 if kind == WORD_KINDS[DType.F16] else 4)
        none = encode_delta_frame(
            kind, bytes(size), bytes(size), rows, columns, rows, 1, bytes(184), 1 << 30, 2, 1
        )
        assert none is None
    with pytest.raises(ValueError, match="effort"):
        encode_delta_frame(BF16, *data, rows, columns, rows, 1, bytes(184), 1 << 30, 3, 1)

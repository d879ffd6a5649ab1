"""Weights of exports, and fine-tunes of them, decode on a GPU to the bytes of the native core."""

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import CorruptFrame, DType, InvalidInput
from deltahub.codecs._native import join_planes
from deltahub.codecs.cuda.device import Launch
from deltahub.codecs.cuda.layout import GROUP, NO_FAULT, PIECE, PLANE, TARGET
from deltahub.codecs.cuda.weights import GpuDelta, GpuWeight
from deltahub.codecs.exports.coding import (
    MANTISSA_BITS,
    MAX_BLOCK,
    SLICE_ELEMENTS,
    coding,
    encode_delta,
    lossless,
)
from deltahub.codecs.exports.file import CompressedWeight, ExportFile
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.codecs.words import WORD_KINDS
from support.codecs.deltas import fine_tune
from support.codecs.exports import ROUNDED, decoded, export_of, weight
from support.cuda.kernels import EmulatedDevice

ROOT = Path(__file__).parents[1] / "vectors" / "neuzip"
VECTORS = [
    path
    for path in sorted(ROOT.glob("v*/*.json"))
    if json.loads(path.read_text())["expect"] == "ok"
]
SEEDS = st.integers(0, 2**32 - 1)
rounded = pytest.mark.parametrize("dtype", ROUNDED, ids=lambda dtype: dtype.name)


def read(found: CompressedWeight, bits: int | None = None, seed: int = 0) -> bytes:
    out = np.full(found.plain_bytes, 0xA5, np.uint8)
    on_gpu = GpuWeight(found, bits, EmulatedDevice(seed))
    on_gpu.decode_into(out)
    on_gpu.check()
    return out.tobytes()


def opened(how: Any, words: bytes) -> CompressedWeight:
    return ExportFile(export_of({"w": weight(how, words)}), "a file").weights["w"]


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_a_vector_is_decoded_at_every_level(path: Path) -> None:
    vector: dict[str, Any] = json.loads(path.read_text())
    for name, found in ExportFile(bytes.fromhex(vector["file"]), "a file").weights.items():
        if isinstance(found.coding, IntegerCoding):
            with pytest.raises(InvalidInput, match="decoded on a CPU alone"):
                read(found)
            continue
        for level in found.coding.levels:
            assert read(found, level).hex() == vector["weights"][name][str(level)]


@st.composite
def launches(draw: st.DrawFn) -> tuple[DType, int, list[tuple[int, int]], int, int]:
    """(dtype, words, the planes' lowest bits and widths, fill, elements of a block or 0)."""
    dtype = draw(st.sampled_from(ROUNDED))
    most = MANTISSA_BITS[dtype]
    edges = sorted(draw(st.sets(st.integers(0, most), max_size=5)))
    planes = [(low, high - low) for low, high in pairwise(edges)]
    count = draw(st.integers(1, 900) | st.sampled_from([8191, 8192, 8193]))
    block = draw(st.sampled_from([0, 8, 16, 512, 4096]))
    return dtype, count, planes, draw(st.integers(0, (1 << most) - 1)), block


@settings(max_examples=150)
@given(case=launches(), seed=SEEDS, is_aligned=st.booleans())
def test_any_planes_are_joined_as_by_the_native_core(
    case: tuple[DType, int, list[tuple[int, int]], int, int], seed: int, is_aligned: bool
) -> None:
    dtype, count, planes, fill, block = case
    random, size = np.random.default_rng(seed), dtype.itemsize
    words = random.bytes(count * size)  # infinite and subnormal ones, too
    bits = [random.bytes(-(-count * width // 8)) for _, width in planes]
    scales = random.bytes(-(-count // block)) if block else None
    expected = bytearray(words)
    told = [(low, width, data) for (low, width), data in zip(planes, bits, strict=True)]
    join_planes(WORD_KINDS[dtype], expected, told, fill, scales, block or MAX_BLOCK, 1)
    assert joined(EmulatedDevice(seed), case, words, bits, scales, is_aligned) == expected


def joined(
    device: EmulatedDevice,
    case: tuple[DType, int, list[tuple[int, int]], int, int],
    words: bytes,
    bits: list[bytes],
    scales: bytes | None,
    is_aligned: bool,
) -> bytes:
    """What the kernel makes of the words."""
    dtype, count, planes, fill, block = case

    def kept(data: Any) -> int:
        memory = device.allocate(max(len(data), 1))
        memories.append(memory)
        device.upload(memory, np.frombuffer(data, np.uint8))
        return memory.address

    memories: list[Any] = []
    mantissa_bits = MANTISSA_BITS[dtype]
    piece = np.zeros(1, PIECE)
    piece["scales"] = 0 if scales is None else kept(scales)
    piece["n_planes"], piece["fill"] = len(planes), fill
    piece["mantissa_bits"] = mantissa_bits
    piece["exponent_bits"] = 8 * dtype.itemsize - 1 - mantissa_bits
    piece["block_bits"] = max(block, 1).bit_length() - 1
    rows = [(kept(data), *each) for each, data in zip(planes, bits, strict=True)]
    groups = [(0, first, min(2048, count - first)) for first in range(0, count, 2048)]
    shift = 0 if is_aligned else dtype.itemsize
    target = device.allocate(len(words) + shift)
    target.owner[shift:] = np.frombuffer(words, np.uint8)
    arguments = (
        kept(piece.tobytes()),
        kept(np.array(rows, PLANE).tobytes()),
        kept(np.array(groups, GROUP).tobytes()),
        kept(np.array([(target.address + shift, 0)], TARGET).tobytes()),
        kept(np.array([NO_FAULT], np.uint64).tobytes()),
    )
    kernel = f"join_planes_{8 * dtype.itemsize}"
    device.launch(None, Launch(kernel, len(groups), 64, 0, arguments))
    result: bytes = target.owner[shift:].tobytes()
    return result


@rounded
def test_every_scale_of_every_significand(dtype: DType) -> None:
    m = MANTISSA_BITS[dtype]
    top = np.arange(1 << min(m, 10), dtype=np.uint32) << max(m - 10, 0)
    last = (1 << (8 * dtype.itemsize - 1 - m)) - 1
    ends = [0, 1, 2, last - 2, last - 1]
    # Each block of eight has one scale: eight words of neighbouring significands.
    for low in (0, (1 << max(m - 10, 0)) - 1):
        for exponent in ends:
            base = ((top | low) + (exponent << m)).astype(f"<u{dtype.itemsize}")
            words = np.tile(base, 4).tobytes()
            count = len(words) // dtype.itemsize
            scales = np.resize(np.arange(256, dtype=np.uint8)[::3], count // 8).tobytes()
            expected = bytearray(words)
            join_planes(WORD_KINDS[dtype], expected, [], 0, scales, 8, 1)
            case = (dtype, count, [], 0, 8)
            assert joined(EmulatedDevice(), case, words, [], scales, True) == expected


@rounded
@pytest.mark.parametrize("block", [0, 8, 4096])
@pytest.mark.parametrize("count", [1, 9, 5000])
def test_a_rounded_weight_of_any_number(dtype: DType, block: int, count: int) -> None:
    found = opened(coding(dtype, 3, block, [0, 1]), fine_tune(dtype, count)[0])
    file = ExportFile(export_of({"w": weight(found.coding, fine_tune(dtype, count)[0])}), "a file")
    for level in (0, 1, 3):
        assert read(found, level, seed=level) == decoded(file, "w", level)


def test_a_reader_of_fewer_bits_keeps_fewer_bytes() -> None:
    found = opened(coding(DType.BF16, 5, 64, [1, 3]), fine_tune(DType.BF16, 20_000)[0])
    sizes = [GpuWeight(found, bits, EmulatedDevice()).size_bytes for bits in (1, 3, 5)]
    for (low, fewer), (high, more) in combinations(zip((1, 3, 5), sizes, strict=True), 2):
        assert abs((more - fewer) - 20_000 * (high - low) // 8) < 200
    for bits, size in zip((1, 3, 5), sizes, strict=True):
        assert size < found.size_bytes(bits) + 8192


def test_a_weight_of_torch_is_filled_again_and_again() -> None:
    found = opened(coding(DType.BF16, 3, 0), fine_tune(DType.BF16, 900)[0])
    device, out = EmulatedDevice(), torch.zeros(30, 30, dtype=torch.bfloat16)
    on_gpu = GpuWeight(found, None, device)
    for verify in (True, False):
        out.zero_()
        on_gpu.decode_into(out, verify=verify)
        on_gpu.check()
        assert out.view(torch.uint8).numpy().tobytes() == read(found)


def test_damage_is_told_by_the_name_of_the_weight() -> None:
    how = coding(DType.BF16, 3, 16, [1])
    data = bytearray(export_of({"a.weight": weight(how, fine_tune(DType.BF16, 1003)[0])}))
    good = ExportFile(bytes(data), "a file").weights["a.weight"]
    for part in ("scales", "m3"):
        body = bytes(good.slices[0][part].body)
        bad = bytearray(data)
        bad[bad.index(body) + 5] ^= 4
        found = ExportFile(bytes(bad), "a file").weights["a.weight"]
        with pytest.raises(CorruptFrame, match=r"^a\.weight: one of its planes or scales .*again"):
            GpuWeight(found, None, EmulatedDevice())
    body = bytes(good.slices[0]["words"].body)
    data[data.index(body) + len(body) // 2] ^= 4
    found = ExportFile(bytes(data), "a file").weights["a.weight"]
    with pytest.raises(CorruptFrame, match=r"^a\.weight: .*from its hub again"):
        read(found)


def test_sizes_and_levels_that_do_not_fit_are_refused_by_name() -> None:
    found = opened(coding(DType.BF16, 3, 0), fine_tune(DType.BF16, 900)[0])
    with pytest.raises(InvalidInput, match="w: the weight was exported to be read at 3"):
        GpuWeight(found, 1, EmulatedDevice())
    with pytest.raises(InvalidInput, match="w: an array of 10 bytes for 1800"):
        GpuWeight(found, None, EmulatedDevice()).decode_into(np.zeros(10, np.uint8))


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F32], ids=lambda each: each.name)
@pytest.mark.parametrize("change", ["tuned", "same", "zeros", "other"])
def test_a_fine_tune_is_decoded_from_the_base_in_the_same_buffer(dtype: DType, change: str) -> None:
    tuned, base = fine_tune(dtype, 3000)
    words = {"tuned": tuned, "same": base, "zeros": bytes(len(base)), "other": base[::-1]}[change]
    if change == "other":
        words = np.frombuffer(base, f"<u{dtype.itemsize}")[::-1].tobytes()
    found = opened(lossless(dtype), base)
    delta = encode_delta(dtype, memoryview(words), memoryview(base))
    device, out = EmulatedDevice(), np.zeros(len(base), np.uint8)
    on_gpu, changes = GpuWeight(found, None, device), GpuDelta(found, [delta], device)
    for _ in range(2):
        on_gpu.decode_into(out)
        changes.apply_to(out)
        on_gpu.check()
        changes.check()
        assert out.tobytes() == words
    assert (changes.size_bytes == 0) == (change == "same")


def test_a_fine_tune_of_another_base_is_refused_by_name() -> None:
    tuned, base = fine_tune(DType.BF16, 3000)
    delta = encode_delta(DType.BF16, memoryview(tuned), memoryview(base))
    device, out = EmulatedDevice(), np.zeros(len(base), np.uint8)
    changes = GpuDelta(opened(lossless(DType.BF16), base), [delta], device)
    changes.apply_to(out)
    with pytest.raises(CorruptFrame, match=r"^w: block 0 .*from its hub again"):
        changes.check()


def test_a_weight_of_two_slices() -> None:
    count = SLICE_ELEMENTS + 40
    words = np.resize(np.frombuffer(fine_tune(DType.F16, 2000)[0], "<u2"), count).tobytes()
    how = coding(DType.F16, 2, 64, [0])
    file = ExportFile(export_of({"w": weight(how, words)}), "a file")
    device = EmulatedDevice()
    on_gpu, out = GpuWeight(file.weights["w"], None, device), np.zeros(len(words), np.uint8)
    on_gpu.decode_into(out, verify=False)
    on_gpu.check()
    assert out.tobytes() == decoded(file, "w")
    kernels = [launch.kernel for launch in device.launches]
    assert kernels == ["decode_floats_16", "join_planes_16"]  # all slices by one launch of each

"""The benchmark's codecs give back what they were given, on files made here."""

import json

import numpy as np
import pytest

from benchmarks.codec_sizes.contenders.all import BY_NAME
from benchmarks.codec_sizes.contenders.fm_delta_classes import FmDeltaClasses, ideal_bits, ordered
from benchmarks.codec_sizes.contenders.xor_planes import join_planes, split_planes
from benchmarks.codec_sizes.model_file import ModelFile

# ZipNN is no dependency of ours, and may crash: the benchmark runs it in processes of its own.
IN_PROCESS = ["deltahub", "XOR + byte planes + zstd-1", "zstd-3"]


def model(dtype: str, seed: int, is_moved: bool) -> ModelFile:
    """A file of three tensors: one moved a little, one equal in all files, one of odd size."""
    random = np.random.default_rng(7)
    moves = np.random.default_rng(seed)
    header: dict[str, object] = {}
    parts: list[bytes] = []
    position = 0
    for name, shape in {"a": [64, 96], "same": [32, 32], "odd": [333]}.items():
        values = random.standard_normal(shape, np.float32) * np.float32(0.02)
        if is_moved and name != "same":
            values += moves.standard_normal(shape, np.float32) * np.float32(1e-4)
        if dtype == "F32":
            data = values.tobytes()
        elif dtype == "F16":
            data = values.astype(np.float16).tobytes()
        else:
            data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [position, position + len(data)],
        }
        position += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return ModelFile.from_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("name", IN_PROCESS)
def test_a_contender_returns_the_file_bit_for_bit(name: str, dtype: str) -> None:
    base, fine_tune = model(dtype, 1, is_moved=False), model(dtype, 1, is_moved=True)
    encoded = BY_NAME[name].encode(fine_tune, base)
    assert bytes(BY_NAME[name].decode(encoded, base)) == fine_tune.data
    assert 0 < encoded.size < len(fine_tune.data)


def test_our_size_counts_pack_and_recipe() -> None:
    base, fine_tune = model("BF16", 1, is_moved=False), model("BF16", 1, is_moved=True)
    encoded = BY_NAME["deltahub"].encode(fine_tune, base)
    assert encoded.size == sum(len(part) for part in encoded.state)


def test_a_file_equal_to_its_base_costs_only_its_recipe() -> None:
    base = model("BF16", 1, is_moved=False)
    encoded = BY_NAME["deltahub"].encode(base, base)
    assert bytes(BY_NAME["deltahub"].decode(encoded, base)) == base.data
    assert encoded.state[0] == b""


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_byte_planes_join_to_what_was_split(itemsize: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, 24 * itemsize, np.uint8)
    planes = split_planes(data, itemsize)
    assert np.array_equal(planes[:24], data[::itemsize])
    assert np.array_equal(join_planes(planes, itemsize), data)


def test_words_are_ordered_as_their_floats_are() -> None:
    values = np.array([-np.inf, -2.0, -1e-30, -0.0, 0.0, 1e-30, 3.5, np.inf], np.float32)
    order = ordered(values.view(np.uint32))
    assert list(np.diff(order) > 0) == [True] * 7
    assert order[4] - order[3] == 1


def test_the_ideal_code_length_of_known_deltas() -> None:
    base = np.array([0x3F80] * 8, np.uint16)
    assert ideal_bits(base, base) == 0
    # Half equal, half 4 above: one bit a symbol, and the two bits below the highest of 4.
    words = base + np.array([0, 4] * 4, np.uint16)
    assert ideal_bits(words, base) == 8 * 1 + 4 * 2


def test_the_ideal_size_of_a_file_is_near_what_is_built() -> None:
    base, fine_tune = model("BF16", 1, is_moved=False), model("BF16", 1, is_moved=True)
    ideal = FmDeltaClasses().ideal_size(fine_tune, base)
    assert 0 < ideal < BY_NAME["deltahub"].encode(fine_tune, base).size

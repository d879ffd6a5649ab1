"""The generated pair of large models: real safetensors, seeded, related as a fine-tune is."""

import hashlib
from pathlib import Path

import numpy as np

from benchmarks.codecs.model_file import ModelFile
from benchmarks.codecs.ours import OURS
from benchmarks.codecs.tensors import PairOfFiles
from benchmarks.memory.pair import GIB, from_bf16, shapes, to_bf16, write_pair

SIZE = 6 << 20


def test_a_pair_is_the_same_for_the_same_seed_and_has_the_hashes_it_claims(tmp_path: Path) -> None:
    first, again = write_pair(tmp_path / "a", SIZE), write_pair(tmp_path / "b", SIZE)
    other = write_pair(tmp_path / "c", SIZE, seed=1)
    assert first.fine_tune_sha256 == again.fine_tune_sha256 != other.fine_tune_sha256
    for folder, sha256 in (
        (first.base, first.base_sha256),
        (first.fine_tune, first.fine_tune_sha256),
    ):
        data = (folder / "model.safetensors").read_bytes()
        assert hashlib.sha256(data).hexdigest() == sha256
        assert len(data) == first.size_bytes


def test_the_fine_tune_costs_about_what_real_ones_cost(tmp_path: Path) -> None:
    pair = write_pair(tmp_path, SIZE)
    base = ModelFile.load(pair.base / "model.safetensors")
    fine_tune = ModelFile.load(pair.fine_tune / "model.safetensors")
    assert base.plan.kind == fine_tune.plan.kind == "safetensors"
    files = PairOfFiles.load(pair.base / "model.safetensors", pair.fine_tune / "model.safetensors")
    share = OURS[0].stored(files).size_bytes / files.file_bytes
    assert 0.1 < share < 0.4


def test_shapes_of_eight_gibibytes_have_a_tensor_of_two() -> None:
    sizes = [2 * rows * columns for rows, columns in shapes(8 * GIB).values()]
    assert max(sizes) == 2 * GIB
    assert abs(sum(sizes) - 8 * GIB) < 1 << 20


def test_rounding_to_bf16_is_to_nearest_even() -> None:
    words = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF807FFF], np.uint32)
    rounded = to_bf16(words.view(np.float32))
    assert [hex(word) for word in rounded] == ["0x3f80", "0x3f82", "0x3f81", "0xbf80"]
    assert np.array_equal(to_bf16(from_bf16(rounded)), rounded)

"""Every set of kernels, and the reference, write the same bytes and read the same bytes."""

import hashlib
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import BlockMode, CorruptFrame, DType, Geometry, decode_frame
from deltahub.codecs._native import FmDeltaEncoder, kernel_names, use_kernels
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS, LowRank, predict
from deltahub.codecs.kernels import VARIABLE
from deltahub.codecs.protocol import Effort
from deltahub.codecs.reference import fm_delta, neuzip_lossless
from deltahub.codecs.reference.coder import guarded
from deltahub.codecs.reference.fm_delta import BlockShape
from deltahub.codecs.reference.words import Words
from deltahub.codecs.words import WORD_KINDS
from support.codecs.coded_frames import with_strides
from support.codecs.deltas import (
    block_rectangle,
    decode,
    encode,
    encode_alone,
    fine_tune,
    modes,
    one_row,
    scaled_fine_tune,
    special_words,
    with_stride,
)
from support.codecs.kernels import (
    NAMES,
    delta_outcome,
    every_kernel,
    float_outcome,
    run_delta,
    running,
)
from support.codecs.native_builds import KERNELS
from support.codecs.reference_models import Tensor, make_tensor

every_dtype = pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.name)
FLOATS = [dtype for dtype in DType if dtype.is_float]


def pair_of(dtype: DType, rows: int, columns: int) -> tuple[bytes, bytes]:
    if dtype.is_float:
        return scaled_fine_tune(dtype, rows, columns)
    return fine_tune(dtype, rows * columns)


# --- kernels against kernels


def test_all_kernels_write_every_difference_of_16_bits_alike() -> None:
    rng = np.random.default_rng(4)
    near = rng.integers(-20, 20, 1 << 19)  # most cells are narrow, and all cells occur
    words = rng.permutation(np.concatenate([np.arange(1 << 16), near])).astype("<u2")
    source, base = words.tobytes(), bytes(2 * len(words))
    streams = []
    for name in NAMES:
        with running(name):
            encoder = FmDeltaEncoder(
                WORD_KINDS[DType.I16], source, base, 1, len(words), Effort.FAST, b"", b"", 0, False
            )
            streams.append(encoder.encode(source, base, 0, 0, 1, len(words)))
    assert len(streams[0]) < len(source)
    assert all(stream == streams[0] for stream in streams)


@every_dtype
@pytest.mark.parametrize("parts", [1, 3])
def test_all_kernels_write_and_read_the_same_deltas(dtype: DType, parts: int) -> None:
    rows, columns = 70, 331
    geometry = Geometry(dtype, rows, columns, 1 if parts > 1 else 33, parts)
    source, base = pair_of(dtype, rows, columns)
    bodies = []
    for name in NAMES:
        with running(name):
            bodies.append(encode(geometry, source, base))
    assert BlockMode.CODED in modes(bodies[0])
    assert all(body == bodies[0] for body in bodies)
    for name in NAMES:
        with running(name):
            assert decode(geometry, bodies[0], base) == source


@pytest.mark.parametrize("dtype", [DType.I8, DType.I16, DType.BF16], ids=lambda dtype: dtype.name)
def test_all_kernels_join_few_and_many_digits_alike(dtype: DType) -> None:
    rows, columns = 96, 256
    rng = np.random.default_rng(11)
    words = np.dtype(f"u{dtype.itemsize}")
    base = rng.integers(0, 1 << 8 * dtype.itemsize, (rows, columns)).astype(words)
    most = (1 << np.arange(rows) % (8 * dtype.itemsize - 1))[:, np.newaxis]
    source = base + rng.integers(-most, most + 1, (rows, columns)).astype(words)
    geometry = Geometry(dtype, rows, columns, 32, 1)
    bodies = []
    for name in NAMES:
        with running(name):
            bodies.append(encode(geometry, source.tobytes(), base.tobytes()))
    assert set(modes(bodies[0])) == {BlockMode.CODED}
    assert all(body == bodies[0] for body in bodies)
    assert decode(geometry, bodies[0], base.tobytes()) == source.tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_all_kernels_write_and_read_the_same_floats(dtype: DType) -> None:
    _, words = fine_tune(dtype, 20_011)
    geometry = one_row(dtype, 20_011, 3)
    bodies = []
    for name in NAMES:
        with running(name):
            bodies.append(encode_alone(geometry, words))
    assert BlockMode.CODED in modes(bodies[0])
    assert all(body == bodies[0] for body in bodies)
    for name in NAMES:
        with running(name):
            assert decode(geometry, bodies[0], None) == words


@pytest.mark.parametrize("dtype", list(FLOAT_WORDS), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rank", [1, 2, 7, 8, 9, 64])
def test_all_kernels_predict_the_same_words_from_any_factors(dtype: DType, rank: int) -> None:
    """Some factors are at their limits, so that products wrap around; words are of every kind."""
    random = np.random.default_rng(rank)
    rows, columns = 66, 130
    special = special_words(dtype)
    near = np.frombuffer(fine_tune(dtype, rows * columns)[1], special.dtype)
    base = np.where(random.random(near.size) < 0.1, random.choice(special, near.size), near)
    base = base.reshape(rows, columns)
    limits = np.array([-(2**15), 2**15 - 1, 0, 1, -1])

    def factor(*shape: int) -> npt.NDArray[np.int16]:
        small = random.integers(-40, 40, shape)
        at_limits = random.random(shape) < 0.05
        return np.where(at_limits, random.choice(limits, shape), small).astype("<i2")

    left, right = factor(rows, rank), factor(rank, columns)
    most = FLOAT_WORDS[dtype].max_exponent
    for floor, is_rounded in product((1, most // 2, most - 1), (False, True)):
        source = predict(dtype, base, LowRank(left, right, floor, is_rounded))
        source[::7] += np.array(3, source.dtype)
        words = source.tobytes(), base.tobytes()
        encoded = set()
        for name in NAMES:
            with running(name):
                encoder = FmDeltaEncoder(
                    WORD_KINDS[dtype], *words, rows, columns, 2,
                    left.tobytes(), right.tobytes(), floor, is_rounded,
                )  # fmt: skip
                encoded.add((encoder.prelude, encoder.encode(*words, 0, 0, rows, columns)))
        ((prelude, stream),) = encoded
        for name in NAMES:
            shape = BlockShape(rows, columns)
            decoded = run_delta(name, dtype, (rows, columns), prelude, stream, words[1], shape)
            assert decoded == words[0], name


def test_all_kernels_predict_the_same_words_of_few_wide_rows() -> None:
    """The rows are so wide that the portable kernels do not pad the right factor with zeros."""
    random = np.random.default_rng(0)
    rows, columns = 2, (1 << 21) + 37
    base = random.integers(0x3C00, 0x3F00, (rows, columns)).astype("<u2")
    left = np.array([[3], [-5]], "<i2")
    right = random.integers(-3000, 3000, (1, columns)).astype("<i2")
    source = predict(DType.BF16, base, LowRank(left, right, 127, False))
    assert (source != base).mean() > 0.5
    words = source.tobytes(), base.tobytes()
    encoded = set()
    for name in NAMES:
        with running(name):
            encoder = FmDeltaEncoder(
                WORD_KINDS[DType.BF16], *words, rows, columns, 2,
                left.tobytes(), right.tobytes(), 127, False,
            )  # fmt: skip
            encoded.add((encoder.prelude, encoder.encode(*words, 0, 0, rows, columns)))
    ((prelude, stream),) = encoded
    for name in NAMES:
        shape = BlockShape(rows, columns)
        decoded = run_delta(name, DType.BF16, (rows, columns), prelude, stream, words[1], shape)
        assert decoded == words[0], name


# --- which kernels run

DIGEST = """
import hashlib, sys
from deltahub.codecs.kernels import choose_kernels
sys.path.insert(0, sys.argv[1])
from support.codecs.deltas import encode, fine_tune, one_row
from deltahub.codecs import DType
body = encode(one_row(DType.BF16, 5000), *fine_tune(DType.BF16, 5000))
print(choose_kernels(), hashlib.sha256(body.prelude + next(iter(body.blocks))[1]).hexdigest())
"""


def run_with(kernels: str) -> subprocess.CompletedProcess[str]:
    support = os.path.join(os.path.dirname(__file__), "..", "..")
    environment = {**os.environ, VARIABLE: kernels}
    return subprocess.run(
        [sys.executable, "-c", DIGEST, support],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_environment_names_the_kernels() -> None:
    body = encode(one_row(DType.BF16, 5000), *fine_tune(DType.BF16, 5000))
    digest = hashlib.sha256(body.prelude + next(iter(body.blocks))[1]).hexdigest()
    for asked, used in [*zip(NAMES, NAMES, strict=True), ("", NAMES[-1])]:
        run = run_with(asked)
        assert run.stdout.split() == [used, digest], run.stderr


@pytest.mark.parametrize("kernels", sorted({"abacus", *KERNELS} - set(NAMES)))
def test_kernels_that_the_processor_cannot_run_are_refused(kernels: str) -> None:
    run = run_with(kernels)
    assert run.returncode != 0
    expected = f"{VARIABLE}={kernels}: this processor runs {', '.join(NAMES)}"
    assert expected in run.stderr
    with pytest.raises(ValueError, match="no such kernels"):
        use_kernels(kernels)


def test_the_portable_kernels_run_everywhere() -> None:
    assert kernel_names()[0] == "portable"


# --- kernels against the reference


@st.composite
def made_tensors(draw: st.DrawFn) -> Tensor:
    """Tensors whose model has any combination of parts, encoded by the reference."""
    dtype = draw(st.sampled_from(list(DType)))
    rows, columns = draw(st.integers(1, 6)), draw(st.sampled_from([1, 3, 31, 32, 33, 70]))
    if draw(st.booleans()):
        geometry = Geometry(dtype, rows, columns, draw(st.integers(1, rows)), 1)
    else:
        parts = draw(st.integers(1, min(3, columns)))
        while -(-columns // -(-columns // parts)) < parts:  # no part may be empty
            parts -= 1
        geometry = Geometry(dtype, rows, columns, 1, parts)
    words = Words.of(dtype)
    most_rank = min(5, rows, columns) if dtype in FLOAT_WORDS else 0
    tensor = make_tensor(
        geometry,
        seed=draw(st.integers(0, 99)),
        special=draw(st.booleans()),
        table_log=draw(st.integers(7, 10)),
        n_classes=draw(st.sampled_from([1, 2, 5, 64])),
        rows=draw(st.booleans()),
        columns=draw(st.booleans()),
        staircase_bits=draw(st.integers(0, min(words.mantissa_bits, 5))),
        rank=draw(st.integers(0, most_rank)),
        stride=draw(st.integers(0, words.mantissa_bits or words.bits - 1)),
    )
    return with_strides(tensor, draw(st.booleans())) if draw(st.booleans()) else tensor


@settings(max_examples=60)
@given(tensor=made_tensors())
def test_kernels_read_what_the_reference_writes(tensor: Tensor) -> None:
    geometry = tensor.geometry
    prelude = fm_delta.write_prelude(tensor.model)
    for index, (shape, sides) in enumerate(zip(tensor.shapes, tensor.sides, strict=True)):
        source, base = tensor.block(index)
        stream = fm_delta.encode_block(tensor.model, source, base, shape, sides)[4:]
        for name in NAMES:
            frame = geometry.rows, geometry.columns
            version = tensor.model.version
            decoded = run_delta(name, geometry.dtype, frame, prelude, stream, base, shape, version)
            assert decoded == source, name


@every_dtype
@pytest.mark.parametrize(("columns", "stride"), [(1000, 0), (1024, 2), (1056, 0), (1100, 1)])
def test_kernels_read_long_blocks_of_the_reference(dtype: DType, columns: int, stride: int) -> None:
    """Long enough for whole rounds of lanes and for chunks that end within a row."""
    words = Words.of(dtype)
    geometry = Geometry(dtype, 3, columns, 3, 1)
    rank = 3 if dtype in FLOAT_WORDS else 0
    tensor = make_tensor(
        geometry,
        rows=True,
        columns=True,
        staircase_bits=min(words.mantissa_bits, 4),
        rank=rank,
        stride=stride,
    )
    prelude = fm_delta.write_prelude(tensor.model)
    (shape,), (sides,) = tensor.shapes, tensor.sides
    stream = fm_delta.encode_block(tensor.model, tensor.source, tensor.base, shape, sides)[4:]
    for name in NAMES:
        frame = 3, columns
        version = tensor.model.version
        decoded = run_delta(name, dtype, frame, prelude, stream, tensor.base, shape, version)
        assert decoded == tensor.source, name


@every_dtype
@pytest.mark.parametrize("with_factors", [False, True])
@pytest.mark.parametrize("stride", [0, 2])
def test_the_reference_reads_and_writes_what_kernels_write(
    dtype: DType, with_factors: bool, stride: int
) -> None:
    rows, columns, words = 34, 65, Words.of(dtype)
    source, base = (with_stride(each, dtype, stride) for each in pair_of(dtype, rows, columns))
    factors: tuple[bytes, bytes, int, bool] = b"", b"", 0, False
    if with_factors and dtype in FLOAT_WORDS:
        random = np.random.default_rng(0)
        left = (2 * random.integers(-30, 30, 3 * rows)).astype("<i2").tobytes()
        right = random.integers(-30, 30, 3 * columns).astype("<i2").tobytes()
        # The left factors are even, so that the model stores a stride for them.
        factors = left, right, FLOAT_WORDS[dtype].max_exponent // 2 - 6, True
    encoder = FmDeltaEncoder(WORD_KINDS[dtype], source, base, rows, columns, 2, *factors, True)
    model = fm_delta.parse_prelude(words, rows, columns, encoder.prelude, encoder.version)
    assert model.zero_bits == stride
    assert (model.low_rank is not None) == (factors[0] != b"")
    assert fm_delta.write_prelude(model) == encoder.prelude
    geometry = Geometry(dtype, rows, columns, 20, 1)
    for index in range(geometry.n_blocks):
        begin, end = geometry.block_bytes(index)
        row, column, n_rows, n_columns = block_rectangle(geometry, index)
        block = source[begin:end], base[begin:end]
        stream = encoder.encode(*block, row, column, n_rows, n_columns)
        shape = BlockShape(n_rows, n_columns, column)
        assert fm_delta.decode_block(model, guarded(stream), block[1], shape) == block[0]
        sides = fm_delta.read_side_values(model, model.coder.open(stream), shape)
        assert fm_delta.encode_block(model, *block, shape, sides) == guarded(stream)


@settings(max_examples=50)
@given(
    dtype=st.sampled_from(FLOATS),
    count=st.sampled_from([1, 31, 32, 33, 64, 400, 1025]),
    zero_bits=st.integers(0, 60),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_the_reference_and_kernels_agree_on_floats(
    dtype: DType, count: int, zero_bits: int, seed: int, data: st.DataObject
) -> None:
    words = Words.of(dtype)
    zero_bits = min(zero_bits, words.mantissa_bits)
    special = special_words(dtype)
    values = np.frombuffer(fine_tune(dtype, count, seed)[1], special.dtype)
    if data.draw(st.booleans()):
        values = np.resize(special, count)
    source = (values >> zero_bits << zero_bits).astype(special.dtype).tobytes()
    with running(data.draw(st.sampled_from(NAMES))):
        plan = encode_alone(one_row(dtype, count), source)
    if modes(plan) != [BlockMode.CODED]:
        return
    stream = next(iter(plan.blocks))[1][4:]
    assert float_outcome(dtype, plan.prelude, stream, count) == source
    model = neuzip_lossless.parse_prelude(words, plan.prelude)
    assert neuzip_lossless.write_prelude(model) == plan.prelude
    assert neuzip_lossless.encode_block(model, source) == guarded(stream)


@settings(max_examples=30)
@given(tensor=made_tensors(), junk=st.binary(max_size=400))
def test_the_reference_and_kernels_agree_on_junk(tensor: Tensor, junk: bytes) -> None:
    """A stream of arbitrary bits with a valid model: the same words or the same refusal."""
    geometry, shape = tensor.geometry, tensor.shapes[0]
    prelude = fm_delta.write_prelude(tensor.model)
    frame, base = (geometry.rows, geometry.columns), tensor.block(0)[1]
    version = tensor.model.version
    delta_outcome(geometry.dtype, frame, prelude, junk, base, shape, version)


# --- golden vectors

VECTORS = Path(__file__).parents[2] / "vectors"


@every_kernel
def test_every_vector_is_read_alike(kernels: str) -> None:
    """Valid vectors decode and invalid vectors are refused, with every set of kernels."""
    paths = [*VECTORS.glob("fm_delta/v*/*"), *VECTORS.glob("neuzip_lossless/v*/*")]
    assert len(paths) > 100
    for path in paths:
        vector = json.loads(path.read_text())
        base = bytes.fromhex(vector["base"]) if "base" in vector else None
        with running(kernels):
            try:
                decoded = decode_frame(bytes.fromhex(vector["frame"]), base)
            except CorruptFrame:
                assert vector["expect"] == "corrupt_frame", path
            else:
                assert (vector["expect"], vector["raw"]) == ("ok", decoded.hex()), path

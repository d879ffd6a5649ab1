"""Each block of a base is decoded once, wherever the blocks of the delta end."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames import (
    BasePlan,
    BaseSegment,
    FrameView,
    TensorSpec,
    encode_frame,
    split_frames,
)
from deltahub.codecs.ids import tensor_id
from deltahub.registry import Registry
from deltahub.registry.db.models import Tensor
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.packs.buffers import LARGEST
from deltahub.registry.packs.tensor_reader import RANGE_BYTES
from support.registry.client_packs import frames_of, near, send_pack, weights
from support.registry.opened import caller, ensure_repository, opened_registry

BLOCK = 2 << 17
COUNT = 700_000
BASE = weights(COUNT)
# Word i of the fine-tune is a delta of word SHIFT + i of the base, as if first rows were removed.
SHIFT = 1000
TUNED = {0: near(BASE), SHIFT: near(BASE[2 * SHIFT :], 1)}


@pytest.fixture(scope="module")
def reg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with opened_registry(Path(tmp_path_factory.mktemp("blocks"))) as reg:
        ann = caller(reg, "ann")
        ensure_repository(reg, ann, "ann/m", private=True)
        frames = frames_of(BASE, codec="neuzip_lossless", max_bytes=3 * BLOCK)
        send_pack(reg, ann, "ann/m", frames)
        for shift, tuned in TUNED.items():
            send_pack(reg, ann, "ann/m", [_shifted(tuned, shift)])
        yield reg


def _shifted(tuned: bytes, shift: int) -> bytes:
    spec = TensorSpec(tensor_id(tuned), DType.BF16, 1, len(tuned) // 2)
    (part,) = split_frames(spec)
    plan = BasePlan((BaseSegment(tensor_id(BASE), DType.BF16, shift, part.count),), is_cast=False)
    return encode_frame(spec, part, tuned, BASE[2 * shift :], plan, "fm_delta")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """(start of a base frame, block) -> how often the block was decoded."""
    found: Counter[tuple[int, int]] = Counter()
    decode_into = FrameView.decode_into

    def counted(view: FrameView, i: int, j: int, *rest: Any) -> None:
        if view.header.base is None:
            found.update((view.header.start, block) for block in range(i, j))
        decode_into(view, i, j, *rest)

    monkeypatch.setattr(FrameView, "decode_into", counted)
    return found


def read(reg: Registry, reader: FileReader, shift: int, first: int, end: int) -> bytes:
    with reg.db.read() as session:
        wanted = tensor_id(TUNED[shift])
        row = session.scalars(select(Tensor).where(Tensor.hash == wanted)).one()
    out = bytearray(end - first)
    reader.read_tensor_into(row.id, first, memoryview(out))
    return bytes(out)


@pytest.mark.parametrize("shift", TUNED)
def test_every_block_of_a_base_is_decoded_once(
    reg: Registry, shift: int, decoded: Counter[tuple[int, int]]
) -> None:
    assert read(reg, FileReader(reg), shift, 0, len(TUNED[shift])) == TUNED[shift]
    assert len(decoded) == -(-2 * COUNT // BLOCK)
    assert set(decoded.values()) == {1}


@pytest.mark.parametrize("shift", TUNED)
@pytest.mark.parametrize("cache", [0, 64 << 20])
def test_any_range_is_exact_where_blocks_and_frames_end(
    reg: Registry, shift: int, cache: int
) -> None:
    reader = FileReader(reg, cache)
    tuned = TUNED[shift]
    seams = [k * BLOCK for k in range(1, 6)] + [k * BLOCK - 2 * shift for k in range(1, 6)]
    for seam in seams:
        for first, end in ((seam - 2, seam), (seam - 1, seam + 1), (seam, seam + BLOCK)):
            end = min(end, len(tuned))
            assert read(reg, reader, shift, first, end) == tuned[first:end]


def test_runs_of_odd_blocks_fit_into_reused_memory(tmp_path: Path) -> None:
    """Rows do not divide RANGE_BYTES: blocks that reach beyond it go to the next range."""
    rows, columns = 1000, 5632
    data = weights(rows * columns)
    spec = TensorSpec(tensor_id(data), DType.BF16, rows, columns)
    (part,) = split_frames(spec)
    frame = encode_frame(spec, part, data, codec="raw")
    assert RANGE_BYTES % (FrameView.parse(frame).block_span(0)[1]) != 0
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        ensure_repository(reg, ann, "ann/m", private=True)
        send_pack(reg, ann, "ann/m", [frame])
        reader = FileReader(reg)
        with reg.db.read() as session:
            row = session.scalars(select(Tensor).where(Tensor.hash == tensor_id(data))).one()
        runs = list(reader.stream_tensor(reader.locate([row.id]), row.id, 0, len(data)))
    assert b"".join(runs) == data
    assert all(run.nbytes <= min(RANGE_BYTES, LARGEST) for run in runs)
    assert all(run.nbytes > RANGE_BYTES * 3 // 4 for run in runs[1:-1])

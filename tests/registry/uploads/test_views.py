"""Frames from clients whose base is transposed or scaled are verified like all others."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames import (
    BasePlan,
    BaseSegment,
    assemble,
    encode_frame,
    split_frames,
    tensor_spec,
)
from deltahub.codecs.frames.base_plan import slice_plan
from deltahub.codecs.frames.views import Scaled, Transposed, View
from deltahub.codecs.ids import tensor_id
from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Tensor
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import InvalidFrame
from deltahub.registry.packs.locations import bases_of
from support.registry.client_packs import near, send_pack, weights
from support.registry.ingested import push_ingested
from support.registry.opened import caller, ensure_repository, opened_registry

ROWS, COLUMNS = 1200, 1800
BASE = weights(ROWS * COLUMNS)
TRANSPOSED = near(np.frombuffer(BASE, "<u2").reshape(ROWS, COLUMNS).T.tobytes())
BY_ROWS = Scaled(COLUMNS, 1, COLUMNS, np.full(ROWS, 4000, "<f4").tobytes())


def plan_of(view: View, base: bytes = BASE) -> BasePlan:
    segment = BaseSegment(tensor_id(base), DType.BF16, 0, ROWS * COLUMNS)
    return BasePlan((segment,), is_cast=isinstance(view, Scaled), view=view)


def made_from(plan: BasePlan, dtype: DType) -> bytes:
    """The base by this plan."""
    out = bytearray(ROWS * COLUMNS * dtype.itemsize)

    def read(_: bytes, first: int, into: memoryview) -> None:
        into[:] = BASE[first : first + len(into)]

    assemble(plan, dtype, 0, ROWS * COLUMNS, read, memoryview(out))
    return bytes(out)


def frames(data: bytes, dtype: DType, shape: tuple[int, int], plan: BasePlan) -> list[bytes]:
    spec = tensor_spec(tensor_id(data), dtype.name, shape)
    whole, size = made_from(plan, dtype), dtype.itemsize
    return [
        encode_frame(
            spec,
            part,
            data[part.start * size : (part.start + part.count) * size],
            whole[part.start * size : (part.start + part.count) * size],
            slice_plan(plan, dtype, part.start, part.count),
            "fm_delta",
        )
        for part in split_frames(spec, (2 << 20) - 1)
    ]


def scaled() -> bytes:
    codes = np.frombuffer(made_from(plan_of(BY_ROWS), DType.F8_E4M3), np.uint8).copy()
    codes[::9] ^= 1
    return codes.tobytes()


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def read_back(reg: Registry, data: bytes) -> tuple[bytes, set[int]]:
    """The tensor as it is stored, and the rows of its bases."""
    with reg.db.read() as session:
        row = session.scalars(select(Tensor).where(Tensor.hash == tensor_id(data))).one()
        bases = bases_of(session, [row.id])[row.id]
    out = bytearray(len(data))
    FileReader(reg).read_tensor_into(row.id, 0, memoryview(out))
    return bytes(out), set(bases)


@pytest.mark.parametrize("private", [True, False])
class TestViews:
    @pytest.fixture(autouse=True)
    def repositories(self, reg: Registry, ann: Caller, private: bool) -> None:
        push_ingested(reg, ann, "ann/base", {"a.bin": BASE})
        ensure_repository(reg, ann, "ann/m", private=private)

    def test_they_are_taken(self, reg: Registry, ann: Caller, private: bool) -> None:
        turned = frames(TRANSPOSED, DType.BF16, (COLUMNS, ROWS), plan_of(Transposed(ROWS, COLUMNS)))
        fp8 = frames(scaled(), DType.F8_E4M3, (ROWS, COLUMNS), plan_of(BY_ROWS))
        assert len(turned) > 1
        assert len(fp8) > 1
        send_pack(reg, ann, "ann/m", [*turned, *fp8])
        with reg.db.read() as session:
            base = session.scalars(select(Tensor.id).where(Tensor.hash == tensor_id(BASE))).one()
        assert read_back(reg, TRANSPOSED) == (TRANSPOSED, {base})
        assert read_back(reg, scaled()) == (scaled(), {base})

    @pytest.mark.parametrize(
        "view",
        [
            Transposed(COLUMNS, ROWS),
            replace(BY_ROWS, multipliers=np.full(ROWS, 4001, "<f4").tobytes()),
        ],
        ids=["turned", "scaled"],
    )
    def test_another_view_than_the_one_it_was_coded_against_is_refused(
        self, reg: Registry, ann: Caller, private: bool, view: View
    ) -> None:
        is_turned = isinstance(view, Transposed)
        data = TRANSPOSED if is_turned else scaled()
        right = plan_of(Transposed(ROWS, COLUMNS) if is_turned else BY_ROWS)
        dtype = DType.BF16 if is_turned else DType.F8_E4M3
        spec = tensor_spec(tensor_id(data), dtype.name, (1, ROWS * COLUMNS))
        (part,) = split_frames(spec)
        frame = encode_frame(spec, part, data, made_from(right, dtype), plan_of(view), "fm_delta")
        with pytest.raises(InvalidFrame):
            send_pack(reg, ann, "ann/m", [frame])

    def test_a_base_of_somebody_else_is_refused_like_an_absent_one(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        secret = weights(ROWS * COLUMNS, seed=5)
        push_ingested(reg, caller(reg, "bob"), "bob/secret", {"a.bin": secret}, private=True)
        for base in (secret, b"absent"):
            plan = plan_of(Transposed(ROWS, COLUMNS), base)
            with pytest.raises(InvalidFrame, match="is not here for you"):
                send_pack(reg, ann, "ann/m", frames(TRANSPOSED, DType.BF16, (COLUMNS, ROWS), plan))

    def test_a_transposed_base_that_is_made_from_one_is_refused(
        self, reg: Registry, ann: Caller, private: bool
    ) -> None:
        turned = frames(TRANSPOSED, DType.BF16, (COLUMNS, ROWS), plan_of(Transposed(ROWS, COLUMNS)))
        send_pack(reg, ann, "ann/m", turned)
        read_back(reg, TRANSPOSED)
        back = near(BASE, seed=2)
        plan = plan_of(Transposed(COLUMNS, ROWS), TRANSPOSED)
        whole = np.frombuffer(TRANSPOSED, "<u2").reshape(COLUMNS, ROWS).T.tobytes()
        spec = tensor_spec(tensor_id(back), "BF16", (ROWS, COLUMNS))
        (part,) = split_frames(spec)
        frame = encode_frame(spec, part, back, whole, plan, "fm_delta")
        with pytest.raises(InvalidFrame, match="transposed"):
            send_pack(reg, ann, "ann/m", [frame])

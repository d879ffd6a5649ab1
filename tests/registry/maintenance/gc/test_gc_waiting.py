"""The plan lists waiting garbage, and dead bytes in packs that stay."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from deltahub.codecs.frames.pack import PACK_INDEX_BYTES
from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.commands.maintenance import plan_lines
from deltahub.registry.db.models import File, Frame, Pack, Tensor, utc_now
from deltahub.registry.maintenance.gc.plan import plan_gc
from support.models import tiny_models as tiny
from support.registry.collecting import age_everything, collect, count
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry, upload

PATH = "model.safetensors"
BASE = tiny.to_file(tiny.base())


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def test_a_plan_says_how_much_waits_for_its_grace_and_until_when(
    reg: Registry, ann: Caller
) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    assert plan_gc(reg, lease_s=0, grace_s=0).waiting == ()
    upload(reg, ann, b"never committed" * 1000)
    (reg.scratch / "young.pack").write_bytes(b"x" * 100)
    delete_repository(reg, ann, "ann/base")
    plan = plan_gc(reg, lease_s=3600)
    assert plan.freed_bytes == plan.later_bytes == 0
    waiting = {item.what: item for item in plan.waiting}
    uploads, tensors = (
        waiting["uploads that no revision needs"],
        waiting["tensors that nothing needs"],
    )
    assert (uploads.count, uploads.size_bytes) == (1, 15_000)
    assert tensors.count == count(reg, Tensor)
    assert waiting["files that no revision lists"].count == 1
    assert waiting["local files without an owner, perhaps"].size_bytes == 100
    with reg.db.read() as session:
        assert tensors.size_bytes == sum(session.scalars(select(Frame.length)))
        last = max(
            *session.scalars(select(Tensor.created_at)), *session.scalars(select(File.ingested_at))
        )
    assert tensors.until == (last + timedelta(days=1)).isoformat(timespec="seconds")
    assert plan.as_dict()["waiting_bytes"] == tensors.size_bytes + 15_100
    lines = "\n".join(plan_lines(plan))
    assert f"waiting, uploads that no revision needs: 1 (15.0 kB), until {utc_now().year}" in lines
    assert "waiting, files that no revision lists: 1, until" in lines
    assert "frees 0 B now" in lines
    later = plan_gc(reg, lease_s=0, grace_s=0)
    assert len(later.tensors) == tensors.count


def test_dead_bytes_of_a_young_pack_are_said_to_wait(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    delete_repository(reg, ann, "ann/base")
    (waiting,) = plan_gc(reg, lease_s=3600, grace_s=0).waiting
    with reg.db.read() as session:
        packs = session.scalars(select(Pack)).all()
    assert (waiting.what, waiting.count) == ("young packs, mostly dead", len(packs))
    assert waiting.size_bytes == sum(pack.size for pack in packs)


def test_a_condemned_pack_is_said_to_wait_for_its_lease(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    delete_repository(reg, ann, "ann/base")
    age_everything(reg, days=2)
    collect(reg, lease_s=3600)
    (waiting,) = plan_gc(reg, lease_s=3600).waiting
    with reg.db.read() as session:
        packs = session.scalars(select(Pack)).all()
    assert (waiting.what, waiting.count) == ("condemned packs", len(packs))
    assert waiting.size_bytes == sum(pack.size for pack in packs)
    last = max(pack.condemned_at for pack in packs if pack.condemned_at is not None)
    assert waiting.until == (last + timedelta(hours=1)).isoformat(timespec="seconds")


def test_a_plan_shows_dead_bytes_that_live_packs_keep(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/m", {"a.bin": b"a" * 4000, "b.bin": os.urandom(90_000)})
    with reg.db.write() as session:
        frame = session.scalars(select(Frame).order_by(Frame.length)).first()
        assert frame is not None
        dead = frame.length
        session.delete(frame)  # as re-planning leaves the old frame in its pack
    (item,) = plan_gc(reg, lease_s=0, grace_s=0).sparse
    assert item.size_bytes == dead + PACK_INDEX_BYTES
    assert any("packs with too few dead bytes" in line for line in plan_lines(plan_gc(reg)))

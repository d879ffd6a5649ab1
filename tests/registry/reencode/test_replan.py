"""A base that comes after its fine-tunes makes them smaller, and no cycle of deltas arises."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from sqlalchemy import select

from deltahub.codecs.frames import tensor_spec
from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import PUBLIC_DOMAIN_KEY, Domain, LineageEdge, Revision, Tensor
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DeltaCycle
from deltahub.registry.jobs import queue
from deltahub.registry.lineage.measured import measure_lineage
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.packs.locations import FrameLocation, locate
from deltahub.registry.packs.switch import make_live, switch_tensor
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.reencode.replan import Replanner
from deltahub.registry.reencode.triggers import enqueue_relatives
from deltahub.registry.uploads.client_packs import accept_pack
from deltahub.registry.uploads.recipes import submit_recipe
from support.models import tiny_models as tiny
from support.registry.collecting import collect
from support.registry.crash_workload import run_jobs
from support.registry.ingested import (
    ingest,
    push_ingested,
    read_file,
    replan,
    run_replans,
    stored_tensors,
)
from support.registry.opened import (
    caller,
    ensure_repository,
    opened_registry,
    push,
    sha256_of,
    upload,
)
from support.service.client_door import pack_and_recipe

MATRICES = ("embedding.weight", "up.weight", "down.weight", "head.weight")
PATH = "model.safetensors"


class Stopped(Exception):
    """Raised by the progress callback, as by a cancelled job."""


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry
        assert list(fsck(registry, read_data=True)) == []


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def push_model(
    reg: Registry,
    pusher: Caller,
    name: str,
    tensors: tiny.Tensors,
    base: str | None = None,
    *,
    private: bool = False,
) -> int:
    files = {PATH: tiny.to_file(tensors)}
    return push_ingested(reg, pusher, name, files, base=base, private=private)


def edges(reg: Registry, child: int) -> dict[str, tuple[int, float | None]]:
    with reg.db.read() as session:
        rows = session.scalars(select(LineageEdge).where(LineageEdge.child_id == child))
        return {edge.origin: (edge.parent_id, edge.share) for edge in rows}


def declared(reg: Registry, revision: int) -> int | None:
    with reg.db.read() as session:
        return session.get_one(Revision, revision).declared_base_revision_id


def test_a_fine_tune_becomes_a_delta_once_its_declared_base_arrives(
    reg: Registry, ann: Caller
) -> None:
    tune = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5), base="ann/base")
    before = stored_tensors(reg, tune)
    assert {stored.depth for stored in before.values()} == {0}
    base = push_model(reg, ann, "ann/base", tiny.base())
    assert declared(reg, tune) == base
    assert {stored.depth for stored in stored_tensors(reg, base).values()} == {0}
    assert run_replans(reg) >= len(MATRICES)
    after, anchors = stored_tensors(reg, tune), stored_tensors(reg, base)
    for name in MATRICES:
        assert after[name].bases == {anchors[name].id}
        assert after[name].stored_bytes < 0.8 * before[name].stored_bytes
    assert read_file(reg, tune, PATH) == tiny.to_file(tiny.finetune(1e-5))
    found = edges(reg, tune)
    assert found["declared"] == (base, None)
    parent, share = found["measured"]
    assert parent == base
    assert share is not None
    assert share > 0.9


def test_repeating_a_replan_changes_nothing(reg: Registry, ann: Caller) -> None:
    tune = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5), base="ann/base")
    push_model(reg, ann, "ann/base", tiny.base())
    run_replans(reg)
    before = stored_tensors(reg, tune)
    assert replan(reg, tune) == 0
    assert stored_tensors(reg, tune) == before


def test_a_base_that_the_author_may_not_read_is_never_resolved(reg: Registry, ann: Caller) -> None:
    bob = caller(reg, "bob")
    tune = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5), base="bob/base")
    push_model(reg, bob, "bob/base", tiny.base(), private=True)
    run_replans(reg)
    assert declared(reg, tune) is None
    assert edges(reg, tune) == {}
    assert {stored.depth for stored in stored_tensors(reg, tune).values()} == {0}


def test_two_fine_tunes_pushed_first_share_their_base_when_it_comes(
    reg: Registry, ann: Caller
) -> None:
    one = push_model(reg, ann, "ann/one", tiny.finetune(1e-5), base="ann/base")
    two = push_model(reg, ann, "ann/two", tiny.finetune(1e-4), base="ann/base")
    base = push_model(reg, ann, "ann/base", tiny.base())
    run_replans(reg)
    assert declared(reg, one) == declared(reg, two) == base
    stand_alone = [
        stored.id
        for revision in (one, two)
        for name, stored in stored_tensors(reg, revision).items()
        if name in MATRICES and stored.depth == 0
    ]
    assert stand_alone == []
    assert edges(reg, two)["measured"][0] == base


def test_an_undeclared_base_still_ends_in_one_copy_and_deltas(reg: Registry, ann: Caller) -> None:
    tune = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5))
    base = push_model(reg, ann, "ann/base", tiny.base())
    run_replans(reg)
    first, second = stored_tensors(reg, tune), stored_tensors(reg, base)
    for name in MATRICES:
        assert first[name].depth + second[name].depth == 1


def test_a_job_that_waits_is_not_asked_for_twice(reg: Registry, ann: Caller) -> None:
    push_model(reg, ann, "ann/tune", tiny.finetune(1e-5), base="ann/base")
    base = push_model(reg, ann, "ann/base", tiny.base())
    with reg.db.write() as session:
        assert enqueue_relatives(session, base) == []
    with reg.db.read() as session:
        assert len(session.scalars(select(Job).where(Job.kind == "replan")).all()) == 1


def test_an_ingest_that_has_not_begun_needs_no_replan(reg: Registry, ann: Caller) -> None:
    waiting = push(reg, ann, "ann/tune", {PATH: tiny.to_file(tiny.finetune(1e-5))}, base="ann/base")
    base = push_model(reg, ann, "ann/base", tiny.base())
    with reg.db.read() as session:
        assert queue.next_queued(session, kinds=["replan"]) == []
        tune = session.scalars(select(Revision.id).where(Revision.commit == waiting.commit)).one()
    assert waiting.job_id is not None
    ingest(reg, tune, waiting.job_id)
    assert declared(reg, tune) == base
    anchors = stored_tensors(reg, base)
    for name in MATRICES:
        assert stored_tensors(reg, tune)[name].bases == {anchors[name].id}


def test_a_replan_stops_where_it_is_told_and_leaves_all_as_it_was(
    reg: Registry, ann: Caller
) -> None:
    tune = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5), base="ann/base")
    push_model(reg, ann, "ann/base", tiny.base())
    before = stored_tensors(reg, tune)

    def progress(done: int, total: int) -> None:
        assert done <= total
        if done > total // 4:
            raise Stopped

    with pytest.raises(Stopped):
        Replanner(reg, FileReader(reg), tune).step(0, progress)
    assert stored_tensors(reg, tune) == before


def test_two_planners_never_make_two_models_need_each_other(reg: Registry, ann: Caller) -> None:
    """A declares B and B declares A; both are re-planned at once, again and again."""
    push(reg, ann, "ann/a", {PATH: tiny.to_file(tiny.base())}, base="ann/b")
    a = push_model(reg, ann, "ann/a", tiny.base(), base="ann/b")
    b = push_model(reg, ann, "ann/b", tiny.finetune(1e-5), base="ann/a")
    with reg.db.write() as session:
        session.get_one(Revision, a).declared_base_revision_id = b
        session.get_one(Revision, b).declared_base_revision_id = a
    make_standalone(reg, a)
    make_standalone(reg, b)
    start = threading.Barrier(2)
    errors: list[BaseException] = []

    def run(revision: int) -> None:
        try:
            start.wait()
            for _ in range(3):
                replan(reg, revision)
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(revision,)) for revision in (a, b)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    first, second = stored_tensors(reg, a), stored_tensors(reg, b)
    for name in MATRICES:
        assert first[name].depth + second[name].depth == 1


def test_the_switch_itself_refuses_a_cycle_and_a_chain_too_long(reg: Registry, ann: Caller) -> None:
    base = push_model(reg, ann, "ann/base", tiny.base())
    tune = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5), base="ann/base")
    anchor, delta = (stored_tensors(reg, revision)["up.weight"].id for revision in (base, tune))
    other = stored_tensors(reg, tune)["head.weight"].id
    deep = {row_of(reg, delta).hash}
    for tensor, max_depth in ((anchor, 2), (other, 1)):
        frames = frames_of(reg, tensor)
        with pytest.raises(DeltaCycle), reg.db.write() as session:
            switch_tensor(session, tensor, frames, deep, max_depth)


def test_shares_count_bytes_held_in_common(reg: Registry, ann: Caller) -> None:
    base = push_model(reg, ann, "ann/base", tiny.base())
    half = dict(tiny.base())
    half["up.weight"] = tiny.base(seed=1)["up.weight"]
    mixed = push_model(reg, ann, "ann/mixed", half)
    total = sum(tensor.nbytes for tensor in half.values())
    with reg.db.write() as session:
        shares = measure_lineage(session, mixed)
    assert shares[base] == pytest.approx(1 - half["up.weight"].nbytes / total)


def frames_of(reg: Registry, tensor: int) -> tuple[FrameLocation, ...]:
    with reg.db.read() as session:
        return locate(session, [tensor])[tensor].frames


def row_of(reg: Registry, tensor: int) -> Tensor:
    with reg.db.read() as session:
        return session.get_one(Tensor, tensor)


def make_standalone(reg: Registry, revision: int) -> None:
    """Store the revision's tensors without bases."""
    for stored in stored_tensors(reg, revision).values():
        row, reader = row_of(reg, stored.id), FileReader(reg)
        with PackSpool(reg, reader, row.domain_id) as spool:
            spec = tensor_spec(row.hash, "F32", (stored.size // 4,))
            spool.encode(spec, partial(reader.read_tensor_into, stored.id))
            sealed = spool.seal()
        with reg.db.write() as session:
            make_live(session, sealed)
            switch_tensor(session, stored.id, sealed.tensors[row.hash].frames, set(), 2)


def test_what_a_client_stored_alone_becomes_a_delta(reg: Registry, ann: Caller) -> None:
    """The client did not have the base in its cache; the hub has it."""
    base = push_model(reg, ann, "ann/base", tiny.base())
    data = tiny.to_file(tiny.finetune(1e-5))
    pack, recipe = pack_and_recipe(data, tiny.to_file({"unlike": torch.zeros(1)}))
    ensure_repository(reg, ann, "ann/sent")
    accept_pack(reg, FileReader(reg), ann, "ann/sent", upload(reg, ann, pack))
    submit_recipe(reg, ann, "ann/sent", recipe)
    run_jobs(reg)
    add = AddFile(PATH, sha256_of(data), len(data))
    pushed = commit(reg, ann, "ann/sent", "main", [add], base="ann/base")
    assert pushed.job_id is None
    run_jobs(reg)
    with reg.db.read() as session:
        sent = session.scalars(select(Revision.id).where(Revision.commit == pushed.commit)).one()
    anchors = stored_tensors(reg, base)
    for name in MATRICES:
        assert stored_tensors(reg, sent)[name].bases == {anchors[name].id}
    assert read_file(reg, sent, PATH) == data


def test_a_tensor_whose_row_became_a_public_one_is_left_alone(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite reuses the id of a deleted row; the new row may have the same contents."""
    tune = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5), base="ann/base", private=True)
    push_model(reg, ann, "ann/base", tiny.base(), private=True)
    victim = stored_tensors(reg, tune)["up.weight"].id
    private, seal = row_of(reg, victim).domain_id, PackSpool.seal

    def move(domain: int) -> None:
        with reg.db.write() as session:
            session.get_one(Tensor, victim).domain_id = domain

    def seal_late(spool: PackSpool) -> SealedPacks:
        move(public_domain(reg))
        return seal(spool)

    monkeypatch.setattr(PackSpool, "seal", seal_late)
    assert Replanner(reg, FileReader(reg), tune).step(0).switched >= len(MATRICES) - 1
    assert row_of(reg, victim).depth == 0
    move(private)


def public_domain(reg: Registry) -> int:
    with reg.db.write() as session:
        found = session.scalar(select(Domain.id).where(Domain.key == PUBLIC_DOMAIN_KEY))
        if found is None:
            domain = Domain(key=PUBLIC_DOMAIN_KEY)
            session.add(domain)
            session.flush()
            found = domain.id
        return found


def test_a_base_that_vanishes_under_way_is_planned_without(reg: Registry, ann: Caller) -> None:
    tune = push_model(reg, ann, "ann/tune", tiny.finetune(1e-5), base="ann/base")
    push_model(reg, ann, "ann/base", tiny.base())
    data = read_file(reg, tune, PATH)
    replanner = Replanner(reg, FileReader(reg, 0), tune)
    delete_repository(reg, ann, "ann/base")
    collect(reg)
    step = replanner.step(0)
    assert (step.next_position, step.switched) == (None, 0)
    assert read_file(reg, tune, PATH) == data

"""All inputs of a branch count: for privacy, for the hub's own work, and for who may read."""

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.repositories import get_repository
from deltahub.registry.db.models import LineageEdge, Repository, Tensor, TensorBase
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import RepositoryNotFound
from deltahub.registry.jobs import queue
from deltahub.registry.lineage.measured import measure_affected
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.reencode.triggers import after_ingest
from support.jobs.here import run_job
from support.merging.running import PATH, asked, branches, push_family
from support.models import tiny_models as tiny
from support.registry.ingested import read_file, stored_tensors
from support.registry.opened import caller
from support.registry.withdrawing import withdraw_now

N_TASKS = 2


def contents(reg: Registry) -> dict[str, bytes]:
    return {ref: read_file(reg, row, PATH) for ref, row in branches(reg, "merged").items()}


@pytest.fixture
def bob(reg: Registry, ann: Caller) -> Caller:
    """Bob has merged Ann's public fine-tunes."""
    names = push_family(reg, ann, [tiny.task(number) for number in range(N_TASKS)])
    user = caller(reg, "bob")
    run_job(reg, asked(reg, user, names, base="ann/base"))
    return user


@pytest.mark.parametrize("change", ["private", "delete"])
@pytest.mark.parametrize("name", ["ann/base", "ann/task0"])
def test_an_input_that_is_withdrawn_leaves_the_merge_whole(
    reg: Registry, ann: Caller, bob: Caller, change: str, name: str
) -> None:
    before = contents(reg)
    with reg.db.read() as session:
        own = {row.id for row in session.query(Repository).filter_by(name=name[4:])}
    assert own
    withdraw_now(reg, ann, name, change)  # type: ignore[arg-type]  # mypy: a parameter
    assert contents(reg) == before
    assert list(fsck(reg, read_data=True)) == []
    with pytest.raises(RepositoryNotFound):
        get_repository(reg, bob, name)


def test_a_branch_is_a_delta_of_base_and_unified_model(reg: Registry, bob: Caller) -> None:
    found = branches(reg, "merged")
    main = {name: each.id for name, each in stored_tensors(reg, found["main"]).items()}
    task = stored_tensors(reg, found["task0"])["up.weight"]
    assert (task.codec, task.depth) == ("masks", 2)
    assert main["up.weight"] in task.bases
    with reg.db.read() as session:
        bases = session.query(TensorBase).filter_by(tensor_id=task.id).count()
        assert bases == 2
        assert session.get_one(Tensor, task.id).depth == 2


def test_the_lineage_names_base_and_fine_tunes(reg: Registry, bob: Caller) -> None:
    found = branches(reg, "merged")
    with reg.db.read() as session:
        kinds = {
            ref: sorted(
                edge.kind
                for edge in session.query(LineageEdge).filter_by(child_id=row, origin="declared")
            )
            for ref, row in found.items()
        }
    assert kinds["main"] == ["merge"] * (N_TASKS + 1)  # the base is an input, too
    assert "merge" in kinds["task0"]


def test_the_hub_leaves_a_merge_as_it_is(reg: Registry, bob: Caller) -> None:
    before = {
        ref: stored_tensors(reg, row)["up.weight"] for ref, row in branches(reg, "merged").items()
    }
    for row in branches(reg, "merged").values():
        after_ingest(reg, FileReader(reg), row)
        measure_affected(reg, row)
    with reg.db.read() as session:
        waiting = queue.next_queued(session, 20, kinds=["replan"])
        revisions = {job.payload["revision_id"] for job in waiting}
        assert session.query(Job).count()
    assert not revisions & set(branches(reg, "merged").values())
    after = {
        ref: stored_tensors(reg, row)["up.weight"] for ref, row in branches(reg, "merged").items()
    }
    assert after == before

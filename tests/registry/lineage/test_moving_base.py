"""A base declared before its weights arrive is used once they come, in any number of commits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.operations import DeleteFile
from deltahub.registry.catalog.repositories import make_private, move_repository
from deltahub.registry.db.models import LineageEdge, Revision
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.reports.revision import BaseReport, report_revision
from support.models import tiny_models as tiny
from support.registry.ingested import (
    declare,
    ingest,
    push_ingested,
    read_file,
    run_replans,
    stored_tensors,
)
from support.registry.opened import caller, opened_registry, push

MATRICES = ("embedding.weight", "up.weight", "down.weight", "head.weight")
PATH = "model.safetensors"
CONFIG = {"config.json": b'{"model_type": "tiny"}'}


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry
        assert list(fsck(registry, read_data=True)) == []


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def push_tune(reg: Registry, pusher: Caller, base: str | None = "ann/base") -> int:
    return push_ingested(
        reg, pusher, "ann/tune", {PATH: tiny.to_file(tiny.finetune(1e-5))}, base=base
    )


def push_base(reg: Registry, pusher: Caller, name: str = "ann/base") -> int:
    return push_ingested(reg, pusher, name, {PATH: tiny.to_file(tiny.base())})


def shard(number: int) -> dict[str, bytes]:
    """One of two files with the matrices of the base."""
    names = MATRICES[number::2]
    return {
        f"model-{number}.safetensors": tiny.to_file({name: tiny.base()[name] for name in names})
    }


def declared_revision(reg: Registry, revision: int) -> int | None:
    with reg.db.read() as session:
        return session.get_one(Revision, revision).declared_base_revision_id


def commit_of(reg: Registry, revision: int) -> str:
    with reg.db.read() as session:
        return session.get_one(Revision, revision).commit


def declared_edges(reg: Registry, child: int) -> list[int]:
    with reg.db.read() as session:
        query = select(LineageEdge.parent_id).where(
            LineageEdge.child_id == child, LineageEdge.origin == "declared"
        )
        return list(session.scalars(query))


def reported(reg: Registry, viewer: Caller) -> BaseReport:
    return report_revision(reg, FileReader(reg), viewer, "ann/tune", "main").base


def assert_made_from(reg: Registry, tune: int, base: int) -> None:
    stored, anchors = stored_tensors(reg, tune), stored_tensors(reg, base)
    for name in MATRICES:
        assert stored[name].bases == {anchors[name].id}, name
        assert anchors[name].depth == 0
    assert read_file(reg, tune, PATH) == tiny.to_file(tiny.finetune(1e-5))


def assert_standalone(reg: Registry, revision: int) -> None:
    assert {stored.depth for stored in stored_tensors(reg, revision).values()} == {0}


def test_a_base_whose_first_commit_has_no_weights_is_used_once_they_come(
    reg: Registry, ann: Caller
) -> None:
    tune = push_tune(reg, ann)
    push_ingested(reg, ann, "ann/base", CONFIG)
    assert reported(reg, ann).declared_status == "no_safetensors"
    with reg.db.read() as session:
        assert session.scalars(select(Job).where(Job.kind == "replan")).all() == []
    base = push_base(reg, ann)
    run_replans(reg)
    assert declared_revision(reg, tune) == base
    assert declared_edges(reg, tune) == [base]
    assert_made_from(reg, tune, base)
    found = reported(reg, ann)
    assert found.declared_status == "resolved"
    assert [each.repository for each in found.measured] == ["ann/base"]


def test_a_base_named_at_a_revision_stays_that_revision(reg: Registry, ann: Caller) -> None:
    first = push_ingested(reg, ann, "ann/base", CONFIG)
    tune = push_tune(reg, ann, base=f"ann/base@{commit_of(reg, first)}")
    push_base(reg, ann)
    run_replans(reg)
    assert declared_revision(reg, tune) == first


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_base_without_weights_is_named_and_then_uploaded(
    reg: Registry, ann: Caller, is_moved: bool
) -> None:
    push_ingested(reg, ann, "ann/base", CONFIG)
    tune = push_tune(reg, ann)
    assert reported(reg, ann).declared_status == "no_safetensors"
    name = "ann/base"
    if is_moved:
        name = "ann/other-name"
        move_repository(reg, ann, "ann/base", name)
    base = push_base(reg, ann, name)
    run_replans(reg)
    assert declared_revision(reg, tune) == base
    assert_made_from(reg, tune, base)


def test_a_base_in_several_commits_is_used_whole(reg: Registry, ann: Caller) -> None:
    tune = push_tune(reg, ann)
    push_ingested(reg, ann, "ann/base", CONFIG)
    first = push_ingested(reg, ann, "ann/base", shard(0))
    run_replans(reg)
    assert declared_revision(reg, tune) == first
    assert {name for name in MATRICES if stored_tensors(reg, tune)[name].depth} == set(
        MATRICES[0::2]
    )
    last = push_ingested(reg, ann, "ann/base", shard(1))
    run_replans(reg)
    assert declared_revision(reg, tune) == last
    assert declared_edges(reg, tune) == [last]
    assert_made_from(reg, tune, last)
    assert reported(reg, ann).declared_share == pytest.approx(1, abs=0.05)
    # A card alone changes nothing.
    push_ingested(reg, ann, "ann/base", {"README.md": b"# Base"})
    assert run_replans(reg) == 0
    assert declared_revision(reg, tune) == last


def test_a_fine_tune_between_two_shards_gets_the_other_one_later(
    reg: Registry, ann: Caller
) -> None:
    push_ingested(reg, ann, "ann/base", shard(0))
    tune = push_tune(reg, ann)
    last = push_ingested(reg, ann, "ann/base", shard(1))
    run_replans(reg)
    assert declared_revision(reg, tune) == last
    assert_made_from(reg, tune, last)


def test_a_base_that_others_replace_stays_what_it_was(reg: Registry, ann: Caller) -> None:
    first = push_base(reg, ann)
    tune = push_tune(reg, ann)
    push_ingested(reg, ann, "ann/base", {PATH: tiny.to_file(tiny.base(seed=1))})
    run_replans(reg)
    assert declared_revision(reg, tune) == first
    assert_made_from(reg, tune, first)


def test_weights_on_another_branch_are_not_what_a_name_means(reg: Registry, ann: Caller) -> None:
    first = push_ingested(reg, ann, "ann/base", CONFIG)
    tune = push_tune(reg, ann)
    files = {PATH: tiny.to_file(tiny.base())}
    with reg.db.read() as session:
        at = session.get_one(Revision, first).commit
    pushed = push(reg, ann, "ann/base", files, ref="dev", expected_parent=at)
    with reg.db.read() as session:
        dev = session.scalars(select(Revision.id).where(Revision.commit == pushed.commit)).one()
    assert pushed.job_id is not None
    ingest(reg, dev, pushed.job_id)
    assert declared_revision(reg, tune) == first


@pytest.mark.parametrize("revision", ["v1", "main"])
def test_a_model_that_is_named_at_a_revision_of_no_use_is_still_found(
    reg: Registry, ann: Caller, revision: str
) -> None:
    """The base may not become a delta of the fine-tune, so the fine-tune must become one."""
    if revision == "main":
        push_ingested(reg, ann, "ann/base", {PATH: tiny.to_file(tiny.base(seed=1))})
    tune = push_tune(reg, ann, base=f"ann/base@{revision}")
    assert_standalone(reg, tune)
    before = declared_revision(reg, tune)
    base = push_base(reg, ann)
    run_replans(reg)
    assert declared_revision(reg, tune) == before
    assert_made_from(reg, tune, base)
    assert [each.repository for each in reported(reg, ann).measured] == ["ann/base"]


def test_a_wrong_base_does_not_keep_the_right_one_from_being_found(
    reg: Registry, ann: Caller
) -> None:
    push_ingested(reg, ann, "ann/wrong", {PATH: tiny.to_file(tiny.base(seed=1))})
    base = push_base(reg, ann)
    tune = push_tune(reg, ann, base="ann/wrong")
    assert_made_from(reg, tune, base)
    found = reported(reg, ann)
    assert (found.declared, found.declared_status) == ("ann/wrong", "unused")
    assert [each.repository for each in found.measured] == ["ann/base"]


def test_an_author_who_may_no_longer_read_the_base_keeps_what_was_there(
    reg: Registry, ann: Caller
) -> None:
    bob = caller(reg, "bob")
    push_ingested(reg, bob, "bob/base", CONFIG)
    tune = push_tune(reg, ann, base="bob/base")
    before = declared_revision(reg, tune)
    make_private(reg, bob, "bob/base")
    push_base(reg, bob, "bob/base")
    run_replans(reg)
    assert declared_revision(reg, tune) == before
    assert_standalone(reg, tune)


def test_a_name_said_again_while_main_is_empty_keeps_the_weights_it_had(
    reg: Registry, ann: Caller
) -> None:
    base = push_base(reg, ann)
    push_tune(reg, ann)
    push_ingested(reg, ann, "ann/base", CONFIG)
    declare(reg, ann, "ann/base", None, [DeleteFile(PATH)])
    again = push_ingested(reg, ann, "ann/tune", {"a.txt": b"a"}, base="ann/base")
    assert declared_revision(reg, again) == base


def test_a_base_with_weights_in_other_files_is_said_to_have_no_safetensors(
    reg: Registry, ann: Caller
) -> None:
    first = push_ingested(reg, ann, "ann/base", {"pytorch_model.bin": b"PK\x03\x04 pickled"})
    tune = push_tune(reg, ann)
    found = reported(reg, ann)
    assert (found.declared_status, found.pending_job_id) == ("no_safetensors", None)
    with reg.db.read() as session:
        assert found.commit == session.get_one(Revision, first).commit
    base = push_base(reg, ann)
    run_replans(reg)
    assert reported(reg, ann).declared_status == "resolved"
    assert_made_from(reg, tune, base)

"""Which of two models becomes a delta of the other, in any order of arrival."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load
from sqlalchemy import select

from deltahub.registry import Caller, Registry
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.jobs import queue
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.reports.revision import BaseReport, report_revision
from support.models import tiny_models as tiny
from support.registry.ingested import (
    declare,
    push_ingested,
    read_file,
    run_replans,
    send_ingested,
    stored_tensors,
)
from support.registry.opened import caller, opened_registry

MATRICES = ("embedding.weight", "up.weight", "down.weight", "head.weight")
PATH = "model.safetensors"

Send = Callable[..., int]


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path, max_depth=2) as registry:
        yield registry
        assert list(fsck(registry, read_data=True)) == []


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def push_whole(
    reg: Registry,
    who: Caller,
    name: str,
    data: bytes,
    *,
    private: bool = False,
    base: str | None = None,
) -> int:
    return push_ingested(reg, who, name, {PATH: data}, private=private, base=base)


# The two ways to upload a model: as one file, and as frames that have no base.
UPLOADS = pytest.mark.parametrize("send", [push_whole, send_ingested])
VISIBILITY = pytest.mark.parametrize("private", [False, True], ids=["public", "private"])


def bf16(tensors: tiny.Tensors) -> bytes:
    return tiny.to_file(tiny.cast(tensors, torch.bfloat16))


@cache
def base_file() -> bytes:
    return bf16(tiny.base())


@cache
def tune_file(number: int = 0) -> bytes:
    """A fine-tune of the base; each number gives other weights."""
    if number == 0:
        return bf16(tiny.finetune(1e-5))
    return perturbed(base_file(), number, 2e-3)


def perturbed(data: bytes, seed: int, step: float) -> bytes:
    """The weights multiplied by 1 + `step` times Gaussian noise."""
    generator = torch.Generator().manual_seed(seed)
    return bf16(
        {
            name: tensor.float() * (1 + step * torch.randn(tensor.shape, generator=generator))
            for name, tensor in load(data).items()
        }
    )


def bases(reg: Registry, revision: int) -> dict[str, frozenset[int]]:
    return {name: stored_tensors(reg, revision)[name].bases for name in MATRICES}


def ids(reg: Registry, revision: int) -> dict[str, frozenset[int]]:
    return {name: frozenset({stored_tensors(reg, revision)[name].id}) for name in MATRICES}


STANDALONE = {name: frozenset[int]() for name in MATRICES}


def reported(reg: Registry, who: Caller, name: str, revision: str = "main") -> BaseReport:
    return report_revision(reg, FileReader(reg), who, name, revision).base


def measured(reg: Registry, who: Caller, name: str) -> dict[str, float]:
    return {each.repository: each.share or 0.0 for each in reported(reg, who, name).measured}


@UPLOADS
@VISIBILITY
def test_frames_that_came_without_a_base_become_a_difference_from_it(
    reg: Registry, ann: Caller, send: Send, private: bool
) -> None:
    base = send(reg, ann, "ann/base", base_file(), private=private)
    tune = send_ingested(reg, ann, "ann/tune", tune_file(0), private=private)
    run_replans(reg)
    assert bases(reg, base) == STANDALONE
    assert bases(reg, tune) == ids(reg, base)
    assert measured(reg, ann, "ann/base") == {}
    assert measured(reg, ann, "ann/tune")["ann/base"] > 0.95
    assert read_file(reg, tune, PATH) == tune_file(0)


def test_only_the_younger_of_two_relatives_is_planned_again(reg: Registry, ann: Caller) -> None:
    send_ingested(reg, ann, "ann/base", base_file())
    run_replans(reg)
    tune = send_ingested(reg, ann, "ann/tune", tune_file(0))
    with reg.db.read() as session:
        waiting = queue.next_queued(session, 10, kinds=["replan"])
        assert [job.payload["revision_id"] for job in waiting] == [tune]


@UPLOADS
@VISIBILITY
def test_a_base_that_is_named_late_stays_a_delta_of_its_fine_tune(
    reg: Registry, ann: Caller, send: Send, private: bool
) -> None:
    tune = send(reg, ann, "ann/tune", tune_file(0), private=private)
    run_replans(reg)
    base = send(reg, ann, "ann/base", base_file(), private=private)
    run_replans(reg)
    # No base is declared, so the first model is the anchor.
    assert bases(reg, tune) == STANDALONE
    assert bases(reg, base) == ids(reg, tune)
    assert list(measured(reg, ann, "ann/base")) == ["ann/tune"]

    before = stored_tensors(reg, tune), stored_tensors(reg, base)
    again = declare(reg, ann, "ann/tune", "ann/base")
    assert run_replans(reg) == 0
    assert (stored_tensors(reg, again), stored_tensors(reg, base)) == before
    assert list(measured(reg, ann, "ann/base")) == ["ann/tune"]
    found = reported(reg, ann, "ann/tune")
    assert (found.declared_status, found.pending_job_id) == ("unused", None)
    assert read_file(reg, tune, PATH) == tune_file(0)
    assert read_file(reg, base, PATH) == base_file()


def test_three_fine_tunes_that_name_a_base_are_made_from_it_when_it_comes_last(
    reg: Registry, ann: Caller
) -> None:
    names = [f"ann/t{i}" for i in (1, 2, 3)]
    tunes = [
        push_whole(reg, ann, n, tune_file(i + 1), base="ann/base") for i, n in enumerate(names)
    ]
    run_replans(reg)
    base = send_ingested(reg, ann, "ann/base", base_file())
    run_replans(reg)
    assert bases(reg, base) == STANDALONE
    for tune in tunes:
        assert bases(reg, tune) == ids(reg, base)
    assert measured(reg, ann, "ann/base") == {}
    for name in names:
        assert list(measured(reg, ann, name)) == ["ann/base"]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)])
def test_three_fine_tunes_that_name_their_base_late_lose_nothing(
    reg: Registry, ann: Caller, order: tuple[int, ...]
) -> None:
    tunes = {i: send_ingested(reg, ann, f"ann/t{i}", tune_file(i)) for i in (1, 2, 3)}
    run_replans(reg)
    base = send_ingested(reg, ann, "ann/base", base_file())
    run_replans(reg)
    before = bases(reg, base)
    assert bases(reg, tunes[1]) == STANDALONE
    assert all(before.values())
    for i in order:
        declare(reg, ann, f"ann/t{i}", "ann/base")
        run_replans(reg)
    # The base is a delta of the first fine-tune, so both stay; the other two remain deltas.
    assert bases(reg, tunes[1]) == STANDALONE
    assert bases(reg, base) == before
    for i in (2, 3):
        assert all(stored_tensors(reg, tunes[i])[name].depth > 0 for name in MATRICES)
    for i in order:
        assert read_file(reg, tunes[i], PATH) == tune_file(i)
    assert read_file(reg, base, PATH) == base_file()


def test_a_fine_tune_with_a_full_chain_upon_it_stays_an_anchor_when_its_base_comes(
    reg: Registry, ann: Caller
) -> None:
    files = [tune_file(1)]
    files += [perturbed(files[0], 4, 1e-2)]
    files += [perturbed(files[1], 5, 1e-3)]
    declared = ("ann/base", None, None)
    chain = [
        push_whole(reg, ann, f"ann/c{i}", data, base=base)
        for i, (data, base) in enumerate(zip(files, declared, strict=True))
    ]
    assert bases(reg, chain[2]) == ids(reg, chain[1])
    assert bases(reg, chain[1]) == ids(reg, chain[0])
    before = [stored_tensors(reg, revision) for revision in chain]
    base = push_whole(reg, ann, "ann/base", base_file())
    run_replans(reg)
    assert bases(reg, base) == STANDALONE
    assert [stored_tensors(reg, revision) for revision in chain] == before
    for revision, data in zip(chain, files, strict=True):
        assert read_file(reg, revision, PATH) == data


def test_a_fine_tune_with_room_in_its_chain_becomes_a_delta_of_its_late_base(
    reg: Registry, ann: Caller
) -> None:
    files = [tune_file(1)]
    files += [perturbed(files[0], 4, 1e-2)]
    tune = push_whole(reg, ann, "ann/c0", files[0], base="ann/base")
    upon = push_whole(reg, ann, "ann/c1", files[1])
    assert bases(reg, upon) == ids(reg, tune)
    base = push_whole(reg, ann, "ann/base", base_file())
    run_replans(reg)
    assert bases(reg, tune) == ids(reg, base)
    assert {stored_tensors(reg, upon)[name].depth for name in MATRICES} == {2}
    assert bases(reg, upon) == ids(reg, tune)
    assert [read_file(reg, each, PATH) for each in (tune, upon)] == files


def test_two_models_that_name_each_other_stay_as_they_are(reg: Registry, ann: Caller) -> None:
    one = push_whole(reg, ann, "ann/one", base_file(), base="ann/two")
    two = push_whole(reg, ann, "ann/two", tune_file(0), base="ann/one")
    run_replans(reg)
    before = (bases(reg, one), bases(reg, two))
    assert sorted(before, key=lambda found: found == STANDALONE)[1] == STANDALONE
    for name, base in (("ann/one", "ann/two"), ("ann/two", "ann/one")):
        declare(reg, ann, name, base + "@main")
        assert run_replans(reg) == 0
    assert (bases(reg, one), bases(reg, two)) == before


def test_a_strangers_copy_that_names_a_base_changes_nothing(reg: Registry, ann: Caller) -> None:
    original = push_whole(reg, ann, "ann/original", base_file())
    bob = caller(reg, "bob")
    push_whole(reg, bob, "bob/tune", tune_file(0))
    push_whole(reg, bob, "bob/copy", base_file(), base="bob/tune")
    run_replans(reg)
    assert bases(reg, original) == STANDALONE


def test_a_base_is_not_made_from_what_is_made_from_its_fine_tunes(
    reg: Registry, ann: Caller
) -> None:
    """The second declares no base, but it is a delta of a model that does."""
    push_whole(reg, ann, "ann/first", tune_file(1), base="ann/base")
    second = push_whole(reg, ann, "ann/second", tune_file(0))
    assert bases(reg, second) != STANDALONE
    base = push_whole(reg, ann, "ann/base", base_file())
    assert bases(reg, base) == STANDALONE


def test_a_late_public_base_serves_a_private_fine_tune(reg: Registry, ann: Caller) -> None:
    tune = send_ingested(reg, ann, "ann/tune", tune_file(0), private=True)
    run_replans(reg)
    base = send_ingested(reg, caller(reg, "bob"), "bob/base", base_file())
    run_replans(reg)
    assert bases(reg, base) == STANDALONE
    assert bases(reg, tune) == ids(reg, base)


def test_a_late_base_that_changes_nothing_leaves_no_job(reg: Registry, ann: Caller) -> None:
    push_whole(reg, ann, "ann/base", base_file())
    push_whole(reg, ann, "ann/tune", tune_file(0))
    declare(reg, ann, "ann/tune", "ann/base")
    with reg.db.read() as session:
        assert session.scalars(select(Job).where(Job.kind == "replan")).all() == []

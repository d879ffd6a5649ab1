"""A base is upgraded: its adapters are planned, moved by real jobs, and put back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.adapters.reports import read_report
from deltahub.registry.catalog.repositories import delete_repository, get_repository
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import InvalidRequest, RepositoryNotFound
from deltahub.registry.upgrades import decisions, rules
from deltahub.registry.upgrades.put_back import put_back
from deltahub.registry.upgrades.running import advance
from deltahub.workers.jobs.adapters.inspection.inspect import inspect_stored
from deltahub.workers.jobs.upgrades.proposing import propose_upgrades
from support.registry.opened import caller, opened_registry, push
from support.transfer.running import SHOWN, prompts, teacher_files
from support.upgrades.planned import jobs_of, moves, state_of
from support.upgrades.running import (
    head_of,
    plan,
    push_adapter,
    push_bases,
    run_moves,
    run_planning,
)

TASK = {"prompts": prompts(), **SHOWN}
# A copy onto the same weights is the old adapter itself: quick, and sure to be published.
COPY = {"rungs": ("copy",), "n": 200, "max_loss": 1}


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as found:
        yield found


@pytest.fixture
def ann(reg: Registry) -> Caller:
    who = caller(reg, "ann")
    push_bases(reg, who, "v1", "twin")
    return who


def moved(reg: Registry, who: Caller, upgrade: int, *adapters: str) -> None:
    """Approve these, and run their jobs to the end."""
    for each in adapters:
        decisions.approve(reg, who, upgrade, [each], TASK)
    assert advance(reg) == len(adapters)
    assert run_moves(reg) == len(adapters)
    assert advance(reg) == len(adapters)


def test_an_adapter_moves_and_the_next_upgrade_starts_from_the_original(
    reg: Registry, ann: Caller
) -> None:
    push_adapter(reg, ann, "ann/tags", "ann/v1")
    first = plan(reg, ann, "ann/v1", "ann/twin", policy="ask", **COPY)
    (told,) = first["moves"]
    assert [each["rung"] for each in told["rungs"]] == ["copy"]
    assert any("no kit" in text for text in told["missing"])
    upgrade = first["upgrade"]
    assert moves(reg, ann, upgrade)["ann/tags"].needs_prompts
    moved(reg, ann, upgrade, "ann/tags")
    done = moves(reg, ann, upgrade)["ann/tags"]
    assert done.state == "published", done.why
    assert (done.chosen, done.result) == ("copy", "ann/tags-twin")
    assert done.agreed is not None
    assert done.agreed["value"] == 1.0
    assert [each["rung"] for each in done.measured] == ["copy"]
    assert get_repository(reg, ann, "ann/tags-twin").head == done.result_commit
    assert state_of(reg, ann, upgrade) == "done"

    push_bases(reg, ann, "v2")
    second = plan(reg, ann, "ann/twin", "ann/v2", policy="ask", **COPY)
    (told,) = second["moves"]
    assert told["adapter"].startswith("ann/tags-twin@")
    assert told["teacher"].startswith("ann/tags@")
    assert told["result"] == "ann/tags-v2"
    assert any("starts from ann/tags on ann/v1, its original" in each for each in told["notes"])
    row = moves(reg, ann, second["upgrade"])["ann/tags-twin"]
    assert row.teacher == told["teacher"]

    delete_repository(reg, ann, "ann/tags")
    (told,) = plan(reg, ann, "ann/twin", "ann/v2", policy="ask", **COPY)["moves"]
    assert told["teacher"].startswith("ann/tags-twin@")
    assert any("the original is gone" in each for each in told["notes"])

    assert put_back(reg, ann, upgrade).deleted == ["ann/tags-twin"]
    with pytest.raises(RepositoryNotFound):
        get_repository(reg, ann, "ann/tags-twin")


def test_one_that_changed_its_base_waits_for_its_conversion(reg: Registry, ann: Caller) -> None:
    row = push_adapter(reg, ann, "ann/started", "ann/v1", init_lora_weights="pissa")
    inspect_stored(reg, FileReader(reg), row)
    state = read_report(reg, ann, "ann/started", "main")["state"]
    assert state in ("convertible", "quarantined")
    found = plan(reg, ann, "ann/v1", "ann/twin", policy="auto", **COPY)
    (told,) = found["moves"]
    assert told["why_not"] is not None
    assert told["missing"] == [told["why_not"]]
    assert moves(reg, ann, found["upgrade"])["ann/started"].state == "proposed"
    assert advance(reg) == 0


def test_one_whose_files_wait_for_their_ingest_holds_nothing_up(reg: Registry, ann: Caller) -> None:
    push_adapter(reg, ann, "ann/tags", "ann/v1")
    push(reg, ann, "ann/fresh", teacher_files("ann/v1"), base="ann/v1")
    push(reg, ann, "ann/fresh", {"notes.md": b"# Not ingested yet\n"})
    found = plan(reg, ann, "ann/v1", "ann/twin", policy="ask", **COPY)
    told = {each["adapter"].partition("@")[0]: each["why_not"] for each in found["moves"]}
    assert "wait for their ingest" in told["ann/fresh"]
    assert "shows what its task looks like" in told["ann/tags"]


def test_a_dry_run_and_off_plan_nothing(reg: Registry, ann: Caller) -> None:
    push_adapter(reg, ann, "ann/tags", "ann/v1")
    dry = plan(reg, ann, "ann/v1", "ann/twin", dry_run=True, **COPY)
    assert (dry["upgrade"], dry["n_planned"], len(dry["moves"])) == (None, 1, 1)
    upgrade = plan(reg, ann, "ann/v1", "ann/twin", policy="ask", **COPY)["upgrade"]
    off = plan(reg, ann, "ann/v1", "ann/twin", policy="off")
    assert (off["policy"], off["moves"]) == ("off", [])
    assert rules.read_policy(reg, ann, "ann/v1").policy == "off"
    assert state_of(reg, ann, upgrade) == "rejected"
    # Without a policy of its own, a plan follows the base's.
    assert plan(reg, ann, "ann/v1", "ann/twin")["policy"] == "off"


def test_others_adapters_are_listed_with_the_reason(reg: Registry, ann: Caller) -> None:
    bob = caller(reg, "bob")
    push_adapter(reg, bob, "bob/tags", "ann/v1")
    found = plan(reg, ann, "ann/v1", "ann/twin", policy="auto", **COPY)
    assert found["upgrade"] is None
    assert found["skipped"] == [{"adapter": "bob/tags", "why": "ann may not write to bob"}]


def test_what_is_no_pair_of_bases_is_refused_when_it_is_asked_for(
    reg: Registry, ann: Caller
) -> None:
    push_adapter(reg, ann, "ann/tags", "ann/v1")
    with pytest.raises(InvalidRequest, match="is an adapter: name two bases"):
        plan(reg, ann, "ann/v1", "ann/tags")
    with pytest.raises(InvalidRequest, match="push the newer one to a repository of its own"):
        plan(reg, ann, "ann/v1", "ann/v1")
    with pytest.raises(RepositoryNotFound):
        plan(reg, ann, "ann/v1", "ann/none")


def test_a_push_proposes_a_plan_once(reg: Registry, ann: Caller) -> None:
    push_adapter(reg, ann, "ann/tags", "ann/v1")
    push_bases(reg, ann, "v2")
    head = head_of(reg, "ann/v2")
    for _ in range(2):
        propose_upgrades(reg, FileReader(reg), head.id)
    (job,) = jobs_of(reg, "upgrade_base")
    found = run_planning(reg, job.id)
    assert found["policy"] == "ask"
    (name,) = moves(reg, ann, found["upgrade"])
    assert name == "ann/tags"
    propose_upgrades(reg, FileReader(reg), head.id)
    assert len(jobs_of(reg, "upgrade_base")) == 1

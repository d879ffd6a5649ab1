"""Whoever may write to an adapter's namespace decides on it, and nothing is decided by halves."""

from collections.abc import Callable
from typing import Any

import pytest

from deltahub.registry.access import organizations
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    RepositoryNotFound,
    Unauthorized,
    UpgradeNotFound,
)
from deltahub.registry.jobs import queue
from deltahub.registry.upgrades import decisions, rules
from deltahub.registry.upgrades.put_back import put_back
from deltahub.registry.upgrades.running import MOST_RUNNING, advance
from support.models import tiny_models as tiny
from support.registry.opened import caller
from support.upgrades.planned import (
    Bases,
    jobs_of,
    moves,
    push_adapter,
    push_base,
    state_of,
    written,
)


@pytest.fixture
def upgrade(bases: Bases) -> int:
    for name in ("ann/one", "ann/two"):
        push_adapter(bases.reg, bases.ann, name, "ann/v1")
    found = written(bases.reg, bases.ann, bases.old, bases.new).upgrade_id
    assert found is not None
    return found


def test_only_writers_decide(bases: Bases, upgrade: int) -> None:
    doors: list[Callable[..., Any]] = [decisions.approve, decisions.reject, put_back]
    reader = caller(bases.reg, "ann", scope="read")
    for door in doors:
        with pytest.raises(Unauthorized):
            door(bases.reg, None, upgrade)
        with pytest.raises(Forbidden, match="scope read"):
            door(bases.reg, reader, upgrade)
        with pytest.raises(Forbidden, match="no namespace of these adapters"):
            door(bases.reg, bases.bob, upgrade)
        with pytest.raises(UpgradeNotFound):
            door(bases.reg, bases.ann, upgrade + 1)
    with pytest.raises(Forbidden, match="may not write to the namespace of ann/one"):
        decisions.approve(bases.reg, bases.bob, upgrade, ["ann/one"])
    assert {each.state for each in moves(bases.reg, None, upgrade).values()} == {"proposed"}


def test_reasons_that_may_name_another_teacher_are_for_those_who_decide(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/one", "ann/v1")
    why = "ann/secret has no kit"
    ways = [{"rung": "copy", "seconds": 1.0, "why_not": why}, {"rung": "titok", "why_not": None}]
    told = {"rungs": ways, "missing": [why], "notes": [why], "why_not": why}
    found = written(
        bases.reg, bases.ann, bases.old, bases.new, teacher="ann/secret@main", **told
    ).upgrade_id
    assert found is not None
    (shown,) = moves(bases.reg, bases.ann, found).values()
    assert (shown.missing, shown.why_not, shown.rungs) == ([why], why, ways)
    for other in (bases.bob, None):
        (shown,) = moves(bases.reg, other, found).values()
        assert "secret" not in str(shown)
        assert shown.why_not is not None
        assert [bool(each["why_not"]) for each in shown.rungs] == [True, False]


def test_a_list_with_one_wrong_name_decides_nothing(bases: Bases, upgrade: int) -> None:
    with pytest.raises(RepositoryNotFound, match="ann/three is no adapter of this upgrade"):
        decisions.approve(bases.reg, bases.ann, upgrade, ["ann/one", "ann/three"])
    with pytest.raises(InvalidRequest, match="no adapter is named"):
        decisions.reject(bases.reg, bases.ann, upgrade, [])
    assert {each.state for each in moves(bases.reg, None, upgrade).values()} == {"proposed"}


def test_approving_and_rejecting_twice_changes_nothing_more(bases: Bases, upgrade: int) -> None:
    assert decisions.approve(bases.reg, bases.ann, upgrade, ["ann/one"]).adapters == ("ann/one",)
    assert decisions.approve(bases.reg, bases.ann, upgrade, ["ann/one"]).adapters == ()
    assert decisions.reject(bases.reg, bases.ann, upgrade).adapters == ("ann/one", "ann/two")
    assert decisions.reject(bases.reg, bases.ann, upgrade).adapters == ()
    assert state_of(bases.reg, None, upgrade) == "rejected"
    assert decisions.approve(bases.reg, bases.ann, upgrade).adapters == ()
    assert decisions.approve(bases.reg, bases.ann, upgrade, ["ann/two"]).adapters == ("ann/two",)
    assert state_of(bases.reg, None, upgrade) == "running"


def test_one_that_cannot_move_is_refused_with_the_reason_and_left_out_of_all(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/one", "ann/v1")
    why = "it was started by pissa: convert it"
    found = written(bases.reg, bases.ann, bases.old, bases.new, why_not=why).upgrade_id
    assert found is not None
    with pytest.raises(Conflict, match="ann/one cannot move: it was started by pissa"):
        decisions.approve(bases.reg, bases.ann, found, ["ann/one"])
    assert decisions.approve(bases.reg, bases.ann, found).n_left == 1


def test_inputs_let_an_adapter_move_that_lacks_a_kit_alone(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/one", "ann/v1")
    lacks = {"why_not": "nothing shows its task", "needs_prompts": True}
    found = written(bases.reg, bases.ann, bases.old, bases.new, **lacks).upgrade_id
    assert found is not None
    task = {"prompts": "1\n2\n3\n4\n5", "template": "{input}="}
    with pytest.raises(InvalidRequest, match="name that one alone"):
        decisions.approve(bases.reg, bases.ann, found, None, task)
    decisions.approve(bases.reg, bases.ann, found, ["ann/one"], task)
    advance(bases.reg)
    (job,) = jobs_of(bases.reg, "transfer_adapter")
    assert {key: job.payload["arguments"][key] for key in task} == task
    push_adapter(bases.reg, bases.ann, "ann/two", "ann/v1")
    written(bases.reg, bases.ann, bases.old, bases.new)
    with pytest.raises(Conflict, match="leave prompts out"):
        decisions.approve(bases.reg, bases.ann, found, ["ann/two"], task)


@pytest.mark.parametrize("undo", [decisions.reject, put_back])
def test_inputs_of_an_earlier_approval_are_asked_for_again(
    bases: Bases, undo: Callable[..., Any]
) -> None:
    push_adapter(bases.reg, bases.ann, "ann/one", "ann/v1")
    lacks = {"why_not": "nothing shows its task", "needs_prompts": True}
    found = written(bases.reg, bases.ann, bases.old, bases.new, **lacks).upgrade_id
    assert found is not None
    decisions.approve(bases.reg, bases.ann, found, ["ann/one"], {"prompts": "1\n2\n3\n4\n5"})
    undo(bases.reg, bases.ann, found)
    assert moves(bases.reg, bases.ann, found)["ann/one"].needs_prompts
    with pytest.raises(Conflict, match="nothing shows its task"):
        decisions.approve(bases.reg, bases.ann, found, ["ann/one"])


@pytest.mark.parametrize("end", ["failed", "kept"])
def test_inputs_of_a_move_that_ended_otherwise_are_used_again_for_their_giver_alone(
    bases: Bases, end: str
) -> None:
    organizations.create_organization(bases.reg, "team")
    for name in ("ann", "bob"):
        organizations.add_member(bases.reg, "team", name, "write")
    push_adapter(bases.reg, bases.ann, "team/one", "ann/v1")
    lacks = {"why_not": "nothing shows its task", "needs_prompts": True}
    found = written(bases.reg, bases.ann, bases.old, bases.new, **lacks).upgrade_id
    assert found is not None
    anns = {"prompts": "1\n2\n3\n4\n5", "template": "{input}=", "max_new_tokens": 3}
    decisions.approve(bases.reg, bases.ann, found, ["team/one"], anns)

    def ends() -> Job:
        advance(bases.reg)
        (job,) = jobs_of(bases.reg, "transfer_adapter", "queued")
        with bases.reg.db.write_beside() as session:
            queue.mark_running(session, job.id)
            if end == "failed":
                queue.mark_failed(session, job.id, "job_failed", "the GPU is gone")
            else:
                queue.mark_done(session, job.id, {"published": False, "reasons": ["a loss"]})
        advance(bases.reg)
        assert moves(bases.reg, bases.ann, found)["team/one"].state == end
        return job

    ends()
    assert not moves(bases.reg, bases.ann, found)["team/one"].needs_prompts
    assert moves(bases.reg, bases.bob, found)["team/one"].needs_prompts
    with pytest.raises(Conflict, match="given by somebody else: give your own"):
        decisions.approve(bases.reg, bases.bob, found, ["team/one"])
    assert decisions.approve(bases.reg, bases.bob, found).adapters == ()
    decisions.approve(bases.reg, bases.ann, found, ["team/one"])  # her own, again
    given = ends().payload["arguments"]
    assert {key: given[key] for key in anns} == anns
    # Nothing of hers is mixed into his.
    decisions.approve(bases.reg, bases.bob, found, ["team/one"], {"prompts": "6\n7\n8\n9\n10"})
    given = ends().payload["arguments"]
    assert given["prompts"] == "6\n7\n8\n9\n10"
    assert not given.keys() & {"template", "max_new_tokens"}
    with pytest.raises(Conflict, match="given by somebody else: give your own"):
        decisions.approve(bases.reg, bases.ann, found, ["team/one"])


def test_some_moves_run_at_a_time(bases: Bases) -> None:
    for number in range(MOST_RUNNING + 2):
        push_adapter(bases.reg, bases.ann, f"ann/many-{number}", "ann/v1")
    found = written(bases.reg, bases.ann, bases.old, bases.new, "auto").upgrade_id
    assert found is not None
    for _ in range(2):
        advance(bases.reg)
        states = [each.state for each in moves(bases.reg, bases.ann, found).values()]
        assert (states.count("queued"), states.count("approved")) == (MOST_RUNNING, 2)
    assert len(jobs_of(bases.reg, "transfer_adapter")) == MOST_RUNNING


def test_an_upgrade_whose_user_has_too_many_jobs_holds_up_no_other(
    bases: Bases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltahub.registry.results.asked.MAX_UNFINISHED", 1)
    monkeypatch.setattr("deltahub.registry.upgrades.running._MOST", MOST_RUNNING)
    for number in range(MOST_RUNNING + 1):
        push_adapter(bases.reg, bases.ann, f"ann/many-{number}", "ann/v1")
    written(bases.reg, bases.ann, bases.old, bases.new, "auto")
    push_adapter(bases.reg, bases.bob, "bob/one", "ann/v1")
    newest = push_base(bases.reg, bases.ann, "ann/v3", tiny.finetune(2e-4))
    other = written(bases.reg, bases.bob, bases.old, newest, "auto").upgrade_id
    assert other is not None
    for _ in range(2):
        advance(bases.reg)
    assert moves(bases.reg, bases.bob, other)["bob/one"].state == "queued"


def test_a_policy_is_the_bases_or_the_namespaces_or_ask(bases: Bases) -> None:
    assert rules.read_policy(bases.reg, None, "ann/v1") == rules.PolicyInForce("ask", "default")
    rules.set_policy(bases.reg, bases.ann, "ann", "auto")
    assert rules.read_policy(bases.reg, None, "ann/v1") == rules.PolicyInForce("auto", "namespace")
    rules.set_policy(bases.reg, bases.ann, "ann/v1", "off")
    assert rules.read_policy(bases.reg, None, "ann/v1") == rules.PolicyInForce("off", "repository")
    assert rules.read_policy(bases.reg, bases.ann, "ann").policy == "auto"
    rules.set_policy(bases.reg, bases.ann, "ann/v1", "inherit")
    assert rules.read_policy(bases.reg, None, "ann/v1") == rules.PolicyInForce("auto", "namespace")
    with pytest.raises(Forbidden):
        rules.set_policy(bases.reg, bases.bob, "ann/v1", "auto")
    with pytest.raises(Forbidden):
        rules.read_policy(bases.reg, bases.bob, "ann")
    with pytest.raises(
        InvalidRequest, match="policy is one of ask, auto, off, inherit, not 'maybe'"
    ):
        rules.set_policy(bases.reg, bases.ann, "ann/v1", "maybe")

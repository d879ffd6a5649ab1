"""A plan has every adapter once, whoever asks how often, and shows each to its readers alone."""

import pytest

from deltahub.registry.access import organizations
from deltahub.registry.catalog.repositories import delete_repository, move_repository
from deltahub.registry.db.models import Revision
from deltahub.registry.errors import InvalidRequest, RevisionNotFound, UpgradeNotFound
from deltahub.registry.upgrades import decisions
from deltahub.registry.upgrades.adapters import find_adapters
from deltahub.registry.upgrades.plans import require_pair, write_plan
from deltahub.registry.upgrades.shown import get_upgrade, list_upgrades
from support.models import tiny_models as tiny
from support.upgrades.planned import (
    Bases,
    moves,
    push_adapter,
    push_base,
    revision,
    state_of,
    written,
)


def found(bases: Bases, who: str = "ann") -> dict[str, str | None]:
    """Adapter -> why it is skipped."""
    caller = {"ann": bases.ann, "bob": bases.bob}[who]
    with bases.reg.db.read() as session:
        both = session.get_one(Revision, bases.old), session.get_one(Revision, bases.new)
        return {each.name: each.why_skipped for each in find_adapters(session, caller, *both)[0]}


def test_it_finds_adapters_of_every_commit_of_the_old_base_and_no_fine_tune(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/first", "ann/v1")
    push_base(bases.reg, bases.ann, "ann/v1", tiny.base(), "# The same weights, with a card\n")
    push_adapter(bases.reg, bases.ann, "ann/second", "ann/v1")
    push_base(bases.reg, bases.ann, "ann/tuned", tiny.task(0), base="ann/v1")
    push_adapter(bases.reg, bases.ann, "ann/other", "ann/v2")
    assert found(bases) == {"ann/first": None, "ann/second": None}


def test_an_adapter_that_the_user_may_not_write_beside_is_skipped_with_the_reason(
    bases: Bases,
) -> None:
    push_adapter(bases.reg, bases.ann, "ann/own", "ann/v1")
    push_adapter(bases.reg, bases.bob, "bob/own", "ann/v1")
    push_adapter(bases.reg, bases.bob, "bob/secret", "ann/v1", private=True)
    assert found(bases) == {"ann/own": None, "bob/own": "ann may not write to bob"}
    assert found(bases, "bob") == {
        "ann/own": "bob may not write to ann", "bob/own": None, "bob/secret": None,
    }  # fmt: skip


def test_a_private_base_never_reaches_another_namespace(bases: Bases) -> None:
    organizations.create_organization(bases.reg, "team")
    organizations.add_member(bases.reg, "team", "ann", "write")
    push_adapter(bases.reg, bases.ann, "team/tags", "ann/v1")
    hidden = push_base(bases.reg, bases.ann, "ann/v3", tiny.finetune(2e-4), private=True)
    with bases.reg.db.read() as session:
        both = session.get_one(Revision, bases.old), session.get_one(Revision, hidden)
        (only,) = find_adapters(session, bases.ann, *both)[0]
    assert only.why_skipped == "ann/v3 is private, and private data stays in its namespace"


def test_the_same_plan_twice_is_one_plan(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/tags", "ann/v1")
    first = written(bases.reg, bases.ann, bases.old, bases.new)
    again = written(bases.reg, bases.ann, bases.old, bases.new)
    assert first == again
    assert first.upgrade_id is not None
    assert len(list_upgrades(bases.reg, bases.ann)) == 1
    assert list(moves(bases.reg, bases.ann, first.upgrade_id)) == ["ann/tags"]


def test_a_later_plan_changes_nothing_that_was_decided(bases: Bases) -> None:
    for name in ("ann/one", "ann/two", "ann/three"):
        push_adapter(bases.reg, bases.ann, name, "ann/v1")
    upgrade = written(bases.reg, bases.ann, bases.old, bases.new).upgrade_id
    assert upgrade is not None
    decisions.approve(bases.reg, bases.ann, upgrade, ["ann/one"])
    decisions.reject(bases.reg, bases.ann, upgrade, ["ann/two"])
    again = written(bases.reg, bases.ann, bases.old, bases.new, "auto")
    assert (again.n_planned, again.n_kept) == (1, 2)
    states = {name: each.state for name, each in moves(bases.reg, bases.ann, upgrade).items()}
    assert states == {"ann/one": "approved", "ann/two": "rejected", "ann/three": "approved"}


def test_two_users_share_one_upgrade_of_a_pair_and_each_decides_on_his_own(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/tags", "ann/v1")
    push_adapter(bases.reg, bases.bob, "bob/tags", "ann/v1", private=True)
    ours = written(bases.reg, bases.ann, bases.old, bases.new).upgrade_id
    assert written(bases.reg, bases.bob, bases.old, bases.new).upgrade_id == ours
    assert ours is not None
    assert list(moves(bases.reg, bases.ann, ours)) == ["ann/tags"]
    assert list(moves(bases.reg, None, ours)) == ["ann/tags"]
    assert list(moves(bases.reg, bases.bob, ours)) == ["ann/tags", "bob/tags"]
    assert get_upgrade(bases.reg, None, ours)[0].counts == {"proposed": 1}
    decided = decisions.approve(bases.reg, bases.bob, ours)
    assert decided.adapters == ("bob/tags",)


def test_what_cannot_move_waits_even_if_the_policy_is_auto(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/tags", "ann/v1")
    why = "it was started by pissa: convert it"
    upgrade = written(bases.reg, bases.ann, bases.old, bases.new, "auto", why_not=why).upgrade_id
    assert upgrade is not None
    assert moves(bases.reg, bases.ann, upgrade)["ann/tags"].state == "proposed"
    assert written(bases.reg, bases.ann, bases.old, bases.new, "auto").n_planned == 1
    assert moves(bases.reg, bases.ann, upgrade)["ann/tags"].state == "approved"


def test_nothing_is_written_for_a_base_without_adapters(bases: Bases) -> None:
    assert written(bases.reg, bases.ann, bases.old, bases.new).upgrade_id is None
    assert list_upgrades(bases.reg, bases.ann) == []


def test_an_upgrade_of_a_hidden_base_is_hidden(bases: Bases) -> None:
    hidden = push_base(bases.reg, bases.ann, "ann/v3", tiny.finetune(2e-4), private=True)
    push_adapter(bases.reg, bases.ann, "ann/tags", "ann/v1")
    upgrade = written(bases.reg, bases.ann, bases.old, hidden).upgrade_id
    assert upgrade is not None
    assert list_upgrades(bases.reg, bases.bob) == []
    with pytest.raises(UpgradeNotFound, match="may not read both"):
        get_upgrade(bases.reg, bases.bob, upgrade)
    assert get_upgrade(bases.reg, bases.ann, upgrade)[0].new == "ann/v3"


def test_names_follow_and_a_deleted_party_is_told_without_a_fault(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/tags", "ann/v1")
    push_adapter(bases.reg, bases.ann, "ann/words", "ann/v1")
    upgrade = written(bases.reg, bases.ann, bases.old, bases.new).upgrade_id
    assert upgrade is not None
    for name in ("v1", "v2", "tags"):
        move_repository(bases.reg, bases.ann, f"ann/{name}", f"ann/{name}-renamed")
    info, _ = get_upgrade(bases.reg, None, upgrade)
    assert (info.old, info.new) == ("ann/v1-renamed", "ann/v2-renamed")
    delete_repository(bases.reg, bases.ann, "ann/words")
    assert set(moves(bases.reg, None, upgrade)) == {"ann/tags-renamed"}
    assert set(moves(bases.reg, bases.ann, upgrade)) == {"ann/tags-renamed", "ann/words"}
    delete_repository(bases.reg, bases.ann, "ann/v2-renamed")
    assert list_upgrades(bases.reg, bases.bob) == []
    (left,) = list_upgrades(bases.reg, bases.ann)
    assert (left.new, left.new_link) == ("ann/v2 (deleted)", False)


def test_a_base_or_an_adapter_that_goes_while_it_is_planned(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/tags", "ann/v1")
    first = written(bases.reg, bases.ann, bases.old, bases.new)
    delete_repository(bases.reg, bases.ann, "ann/tags")
    assert written(bases.reg, bases.ann, bases.old, bases.new).n_planned == 0
    assert first.upgrade_id is not None
    assert state_of(bases.reg, bases.ann, first.upgrade_id) == "proposed"
    gone = max(bases.old, bases.new) + 1000
    with pytest.raises(RevisionNotFound, match="deleted meanwhile"):
        write_plan(bases.reg, bases.ann, (gone, bases.new), [], "ask")


def test_two_commits_of_one_repository_are_no_pair(bases: Bases) -> None:
    old = revision(bases.reg, bases.old)
    with pytest.raises(InvalidRequest, match="repository"):
        require_pair(old, old)

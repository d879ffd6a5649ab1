"""The hub proposes an upgrade once, by the word of a card, or by weights within one namespace."""

import torch

from deltahub.registry.access import organizations
from deltahub.registry.catalog.repositories import delete_repository, move_repository
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.upgrades import rules
from deltahub.registry.upgrades.likeness import likeness
from deltahub.registry.upgrades.proposals import Proposal, find_proposals
from support.models import tiny_models as tiny
from support.upgrades.planned import Bases, push_adapter, push_base, revision, written

NEWER = "---\nnew_version: ann/v2\n---\n# The old base\n"
UPGRADES = "---\nbase_model: ann/v1\nbase_model_relation: upgrade\n---\n# The new base\n"


def proposed(bases: Bases, row: int) -> list[Proposal]:
    return find_proposals(bases.reg, FileReader(bases.reg), row)


def pairs(bases: Bases, row: int) -> list[tuple[str, str, str, str]]:
    return [
        (each.old.partition("@")[0], each.new.partition("@")[0], each.source, each.policy)
        for each in proposed(bases, row)
    ]


def test_weights_that_are_alike_propose_and_never_begin(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/tags", "ann/v1")
    expected = [("ann/v1", "ann/v2", "weights", "ask")]
    assert pairs(bases, bases.new) == expected
    rules.set_policy(bases.reg, bases.ann, "ann", "auto")
    assert pairs(bases, bases.new) == expected
    (found,) = proposed(bases, bases.new)
    assert found.old == f"ann/v1@{revision(bases.reg, bases.old).commit}"
    rules.set_policy(bases.reg, bases.ann, "ann/v1", "off")
    assert pairs(bases, bases.new) == []


def test_the_cards_of_both_bases_are_believed_and_may_begin(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/tags", "ann/v1")
    other = push_base(bases.reg, bases.ann, "ann/v2b", tiny.base(seed=7), UPGRADES, base="ann/v1")
    assert pairs(bases, other) == [("ann/v1", "ann/v2b", "card", "ask")]
    rules.set_policy(bases.reg, bases.ann, "ann/v1", "auto")
    assert pairs(bases, other) == [("ann/v1", "ann/v2b", "card", "auto")]
    old = push_base(bases.reg, bases.ann, "ann/v1", tiny.base(), NEWER)
    expected = [("ann/v1", "ann/v2", "card", "auto")]
    assert pairs(bases, old) == expected
    # Also if the newer one comes after the card that names it.
    assert pairs(bases, bases.new) == expected


def test_a_pair_is_proposed_once_whatever_became_of_it(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/tags", "ann/v1")
    assert written(bases.reg, bases.ann, bases.old, bases.new).upgrade_id is not None
    assert pairs(bases, bases.new) == []
    old = push_base(bases.reg, bases.ann, "ann/v1", tiny.base(), NEWER)
    assert pairs(bases, old) == []


def test_a_fine_tune_is_no_upgrade(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/tags", "ann/v1")
    tuned = push_base(bases.reg, bases.ann, "ann/tuned", tiny.task(0), base="ann/v1")
    assert pairs(bases, tuned) == []
    organizations.create_organization(bases.reg, "team")
    organizations.add_member(bases.reg, "team", "ann", "write")
    elsewhere = push_base(bases.reg, bases.ann, "team/tuned", tiny.task(1))
    assert pairs(bases, elsewhere) == []


def test_other_weights_and_copies_are_no_upgrade(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/tags", "ann/v1")
    reader = FileReader(bases.reg)
    again = push_base(bases.reg, bases.ann, "ann/again", tiny.base(seed=7))
    apart = likeness(bases.reg, reader, bases.old, again)
    assert apart is not None
    assert abs(apart.cosine) < 0.3
    near = likeness(bases.reg, reader, bases.old, bases.new)
    assert near is not None
    assert near.cosine > 0.97
    # By all elements, as the samples say.
    first, second = tiny.base(), tiny.finetune(1e-4)
    whole = torch.nn.functional.cosine_similarity(
        first["up.weight"].flatten(), second["up.weight"].flatten(), dim=0
    )
    assert abs(near.cosine - float(whole)) < 0.05
    copy = push_base(bases.reg, bases.ann, "ann/copy", tiny.base())
    assert likeness(bases.reg, reader, bases.old, copy) is None
    wider = {**tiny.base(), "more.weight": torch.ones(64, 64)}
    more = push_base(bases.reg, bases.ann, "ann/wider", wider)
    assert likeness(bases.reg, reader, bases.old, more) is None
    assert [pairs(bases, row) for row in (again, copy, more)] == [[], [], []]


def test_others_adapters_are_not_asked_about(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/tags", "ann/v1")
    theirs = push_base(bases.reg, bases.bob, "bob/v2", tiny.finetune(2e-4), UPGRADES)
    assert pairs(bases, theirs) == []
    push_adapter(bases.reg, bases.bob, "bob/tags", "ann/v1")
    assert pairs(bases, theirs) == [("ann/v1", "bob/v2", "card", "ask")]


def test_without_adapters_or_a_party_nothing_is_proposed(bases: Bases) -> None:
    assert pairs(bases, bases.new) == []
    adapter = push_adapter(bases.reg, bases.ann, "ann/tags", "ann/v1")
    assert pairs(bases, adapter) == []
    named = "---\nnew_version: ann/missing\n---\n"
    old = push_base(bases.reg, bases.ann, "ann/v1", tiny.base(), named)
    assert pairs(bases, old) == []
    move_repository(bases.reg, bases.ann, "ann/v1", "ann/first")
    assert pairs(bases, bases.new) == [("ann/first", "ann/v2", "weights", "ask")]
    delete_repository(bases.reg, bases.ann, "ann/first")
    assert pairs(bases, bases.new) == []
    delete_repository(bases.reg, bases.ann, "ann/v2")
    assert pairs(bases, bases.new) == []
